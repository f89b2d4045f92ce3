"""Functions compiled by Numba as targets of XLA's foreign function interface: no copies, no Python, no lock.

XLA passes a call frame to its handlers (`xla/ffi/api/c_api.h` of jaxlib: a chain of plain structures). This module reads a
frame, and everything it points to, as arrays of 64-bit words. The layout is jaxlib's own, so `fedpdm.native.FENCE` names the
versions that are known to have it, and elsewhere this module is not imported.

The work of a call is cut into items. The calling thread takes one item after the other, and so do XLA's own threads when they
are free. No thread waits for one that has not begun, so a busy machine makes a call slower only by the time that it takes away,
and calls inside calls cannot block each other.

Numba keeps the compiled code of a kernel on disk, with everything that the kernel calls. To see whether anything changed, it
looks only at the kernel's own file, and at the values that the kernel captures. So kernels capture `SOURCES`, which changes
with every file of this room.
"""

# Numba has its own types, which pyright does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPrivateImportUsage=false, reportReturnType=false

import ctypes
import hashlib
from pathlib import Path
from typing import Any

import jax
import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "HANDLER",
    "ITEM",
    "SOURCES",
    "address_of",
    "buffers",
    "digest_of",
    "dimension",
    "flags",
    "floats",
    "floats_at",
    "integers",
    "name_function",
    "register",
    "serve",
    "words_at",
]

# Words of XLA_FFI_CallFrame and of the structures that it points to
EXTENSION, API, CONTEXT, ARGUMENT_COUNT, ARGUMENTS, RESULT_COUNT, RESULTS = 1, 2, 3, 7, 9, 12, 14
METADATA_EXTENSION, METADATA, METADATA_VERSION = 1, 3, 3
API_VERSION, SCHEDULE, THREADS = 4, 17, 18  # of XLA_FFI_Api; the last two are known to be there in version 0.3
VERSION_0_3 = 3 << 32  # the major version is the lower half of the word
DATA, RANK, DIMENSIONS = 3, 4, 5  # of XLA_FFI_Buffer
# Words of the block that the threads of a call share
TAKEN, FROM_END, FINISHED, HOLDERS, ITEMS, FRAME, WORK, BLOCK_WORDS = range(8)

_allocate = types.ExternalFunction("malloc", types.intp(types.intp))
_free = types.ExternalFunction("free", types.void(types.intp))
_yield = types.ExternalFunction("sched_yield", types.intc())
HANDLER = types.intp(types.intp)  # of a frame
ITEM = types.void(types.intp, types.intp)  # of a frame and the number of an item
HELP_OUT = "fedpdm_help_out"


def digest_of(folder: Path) -> int:
    """Name the code in a folder.

    Parameters
    ----------
    folder : Path
        The folder.

    Returns
    -------
    int
        A number above 0 that changes with each Python file.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return 1 + int.from_bytes(digest.digest()[:7], "big")


SOURCES = digest_of(Path(__file__).parent)


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@intrinsic
def _fetch_add(typing_context: Any, address: Any, amount: Any) -> Any:
    """Add to a word that threads share; returns what it was before."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", word, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _call(typing_context: Any, function: Any, argument: Any) -> Any:
    """Call the C function of one word at this address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _call_item(typing_context: Any, function: Any, frame: Any, number: Any) -> Any:
    """Call the C function of the type ITEM at this address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64), ir.IntType(64)])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@njit
def words_at(address: int, count: int) -> np.ndarray:
    """View 64-bit words in memory that somebody else owns, for as long as it does.

    Parameters
    ----------
    address : int
        Where they begin.
    count : int
        How many.

    Returns
    -------
    ndarray
        The words.
    """
    return carray(_pointer(address), (count,), np.int64)


@njit
def dimension(buffer: int, place: int) -> int:
    """Read the size of a buffer's dimension, counted from its last one.

    Parameters
    ----------
    buffer : int
        Address of an XLA_FFI_Buffer.
    place : int
        1 for the last dimension, 2 for the one before.

    Returns
    -------
    int
        The size.
    """
    words = words_at(buffer, 6)
    return words_at(words[DIMENSIONS], words[RANK])[words[RANK] - place]


@njit
def floats(buffer: int, shape: Any) -> np.ndarray:
    """View the float32 values of a buffer; nothing is copied.

    Parameters
    ----------
    buffer : int
        Address of an XLA_FFI_Buffer.
    shape : tuple of int
        Their shape, which the caller must know.

    Returns
    -------
    ndarray
        The values.
    """
    return carray(_pointer(words_at(buffer, 6)[DATA]), shape, np.float32)


@njit
def integers(buffer: int, shape: Any) -> np.ndarray:
    """View the int32 values of a buffer; nothing is copied.

    Parameters
    ----------
    buffer : int
        Address of an XLA_FFI_Buffer.
    shape : tuple of int
        Their shape, which the caller must know.

    Returns
    -------
    ndarray
        The values.
    """
    return carray(_pointer(words_at(buffer, 6)[DATA]), shape, np.int32)


@njit
def floats_at(address: int, shape: Any) -> np.ndarray:
    """View float32 values in memory that somebody else owns, for as long as it does.

    Parameters
    ----------
    address : int
        Where they begin.
    shape : tuple of int
        Their shape.

    Returns
    -------
    ndarray
        The values.
    """
    return carray(_pointer(address), shape, np.float32)


@njit
def flags(buffer: int, shape: Any) -> np.ndarray:
    """View the truth values of a buffer, a byte each; nothing is copied.

    Parameters
    ----------
    buffer : int
        Address of an XLA_FFI_Buffer.
    shape : tuple of int
        Their shape, which the caller must know.

    Returns
    -------
    ndarray
        The values: 0 or 1.
    """
    return carray(_pointer(words_at(buffer, 6)[DATA]), shape, np.uint8)


@njit
def _ask_for_help(frame: np.ndarray, task: int, block: np.ndarray) -> None:
    """Hand the block to as many of XLA's threads as there are items for."""
    if words_at(frame[API], 5)[API_VERSION] != VERSION_0_3:
        return
    api = words_at(frame[API], 19)
    answer, request = np.zeros(1, np.int64), np.zeros(5, np.int64)
    request[0], request[2], request[3] = 32, frame[CONTEXT], answer.ctypes.data
    if _call(api[THREADS], request.ctypes.data) != 0:
        return
    request[0], request[3], request[4] = 40, task, block.ctypes.data
    for _ in range(min(answer[0], block[ITEMS]) - 1):
        _fetch_add(block.ctypes.data + 8 * HOLDERS, 1)
        if _call(api[SCHEDULE], request.ctypes.data) != 0:
            _fetch_add(block.ctypes.data + 8 * HOLDERS, -1)
            return


@njit
def _claim(block: int, own: int) -> int:
    """Take the next item that no thread works on; -1: there is none, and the arguments of the call may be freed already.

    The calling thread takes items from the front, its helpers from the end. So neighbours in memory mostly stay with one core,
    and a core mostly gets the same places again in the next call. `own` is how many items the calling thread has taken before;
    -1 for a helper.
    """
    items = words_at(block, BLOCK_WORDS)[ITEMS]
    if _fetch_add(block + 8 * TAKEN, 1) >= items:
        return -1
    return own if own >= 0 else items - 1 - _fetch_add(block + 8 * FROM_END, 1)


@njit
def _take_part(block: int, own: int) -> None:
    """Do one item after the other; `own` is 0 for the calling thread, and -1 for a helper."""
    while True:
        number = _claim(block, own)
        if number < 0:
            return
        words = words_at(block, BLOCK_WORDS)
        _call_item(words[WORK], words[FRAME], number)
        _fetch_add(block + 8 * FINISHED, 1)
        own += own >= 0


@njit
def _let_go(block: int) -> None:
    """Release a thread's hold on the block; the last thread frees it."""
    if _fetch_add(block + 8 * HOLDERS, -1) == 1:
        _free(block)


@njit
def buffers(frame: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the buffers of a call.

    Parameters
    ----------
    frame : int
        Address of an XLA_FFI_CallFrame.

    Returns
    -------
    tuple of ndarray
        Addresses of the arguments and of the results.
    """
    words = words_at(frame, 15)
    return words_at(words[ARGUMENTS], words[ARGUMENT_COUNT]), words_at(words[RESULTS], words[RESULT_COUNT])


def address_of(symbol: str) -> Any:
    """Make a compiled function that returns the address of a named function: see `name_function`.

    Parameters
    ----------
    symbol : str
        The name.

    Returns
    -------
    callable
        A Numba function without arguments.
    """

    @intrinsic
    def address(typing_context: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(ir.VoidType(), [])  # of any type: only the address is taken
            function = cgutils.get_or_insert_function(builder.module, kind, symbol)
            return builder.ptrtoint(function, ir.IntType(64))

        return types.int64(), generate

    return address


_help_out = address_of(HELP_OUT)


@njit
def serve(frame: int, work: int) -> None:
    """Answer a call: do all of its items, with the help of those of XLA's threads that are free.

    Parameters
    ----------
    frame : int
        Address of an XLA_FFI_CallFrame. There are as many items as the first result's last dimension but two says.
    work : int
        Address of the C function of the type ITEM that does one of them.
    """
    if _is_question(frame):
        return
    place = _allocate(8 * BLOCK_WORDS)
    block = words_at(place, BLOCK_WORDS)
    block[:] = 0
    block[HOLDERS], block[FRAME], block[WORK] = 1, frame, work
    block[ITEMS] = dimension(words_at(words_at(frame, 15)[RESULTS], 1)[0], 3)
    _ask_for_help(words_at(frame, 15), _help_out(), block)
    _take_part(place, 0)
    while _fetch_add(place + 8 * FINISHED, 0) < block[ITEMS]:
        _yield()
    _let_go(place)


@njit
def _is_question(address: int) -> bool:
    """Answer a call that only asks for the version, with the caller's own version; returns whether it was one."""
    frame = words_at(address, 15)
    if frame[EXTENSION] == 0:
        return False
    extension = words_at(frame[EXTENSION], 4)
    if extension[1] & 0xFFFFFFFF != METADATA_EXTENSION:
        return False
    words_at(extension[METADATA], 5)[METADATA_VERSION] = words_at(frame[API], 5)[API_VERSION]
    return True


def name_function(symbol: str, function: Any) -> None:
    """Name a compiled C function, so that code from Numba's cache finds it in this process.

    Parameters
    ----------
    symbol : str
        The name.
    function : Numba cfunc
        The function.
    """
    llvmlite.binding.add_symbol(symbol, function.address)


def register(name: str, handler: Any) -> None:
    """Register a compiled C function with XLA as the CPU target of `jax.ffi.ffi_call`.

    Parameters
    ----------
    name : str
        Name of the target.
    handler : Numba cfunc
        A function of the type HANDLER.
    """
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(ctypes.c_void_p(handler.address)), platform="cpu")


def _compile(sources: int) -> None:
    """Compile what a helping thread does, or read it from Numba's cache; it captures `sources`: see the module's text."""

    @cfunc(types.void(types.intp), cache=True)
    def help_out(block: int) -> None:
        if sources > 0:
            _take_part(block, -1)
            _let_go(block)

    name_function(HELP_OUT, help_out)


_compile(SOURCES)
