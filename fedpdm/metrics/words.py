"""Test figures in a few lines of text."""

from typing import Any

from fedpdm.choices import METRICS

__all__ = ["metric_lines"]

MOST_CLASSES = 10


def metric_lines(found: dict[str, Any] | None, where: str = "test rows") -> list[str]:
    """Return the result of `evaluate` as text for a terminal, each figure with its interval.

    Parameters
    ----------
    found : dict or None
        The result of `evaluate`.
    where : str
        A name for the rows.

    Returns
    -------
    list of str
        Lines of text; none without figures.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpdm.metrics import evaluate
    >>> shares = np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.4, 0.6]])
    >>> print(*metric_lines(evaluate(shares, np.array([0, 1, 1, 0]), ["no", "yes"])), sep="\\n")
    AUC 0.7500 (0.0570 to 1.0000), balanced accuracy 0.5000 (0.2133 to 0.7867), majority rate 0.5000, on 4 test rows.
    Log loss 0.5737 (0.1731 to 0.9742), Brier score 0.2050 (0.0267 to 0.3833).
      class    rows  recall                     precision                  AUC
      no          2  0.5000 (0.0945 to 0.9055)  0.5000 (0.0945 to 0.9055)  0.7500
      yes         2  0.5000 (0.0945 to 0.9055)  0.5000 (0.0945 to 0.9055)  0.7500
    """
    if not found:
        return []
    if found.get("kind") in ("number", "time"):
        return _number_lines(found, where)
    majority = _bare(found["majority_rate"])
    areas = f"AUC {_text(found['auc'])}, balanced accuracy {_text(found['balanced_accuracy'])}"
    lines = [
        f"{areas}, majority rate {majority}, on {found['rows']:.0f} {where}.",
        f"Log loss {_text(found['log_loss'])}, Brier score {_text(found['brier'])}.",
    ]
    added = [f"{row.title} {_text(found[row.key])}" for row in METRICS.added() if row.key in found]
    if added:
        lines.append(", ".join(added) + ".")
    if found.get("threshold") is not None:
        name, share = found["classes"][1]["name"], f"{found['threshold']:.4g}"
        said = f"accuracy {_text(found['accuracy'])}; the accuracy above is that of naming the more likely class"
        lines.append(f"Class {name} is predicted from a probability of {share} on: {said}.")
    classes = found["classes"]
    if len(classes) > MOST_CLASSES:
        return lines
    width = max(5, *(len(entry["name"]) for entry in classes))
    lines.append(f"  {'class':<{width}} {'rows':>7}  {'recall':<27}{'precision':<27}AUC")
    for entry in classes:
        recall, precision = _text(entry["recall"]), _text(entry["precision"])
        lines.append(f"  {entry['name']:<{width}} {entry['rows']:>7.0f}  {recall:<27}{precision:<27}{_bare(entry['auc'])}")
    return lines


def _number_lines(found: dict[str, Any], where: str) -> list[str]:
    """Of a model that predicts numbers, in the label's units."""
    parts = [f"{row.title} {_number(found[row.key])}" for row in METRICS.values() if row.key in found]
    if "expected_events" in found:
        parts.append(f"{found['events']:.4g} events were seen, {found['expected_events']:.4g} were expected")
    return [f"{parts[0]} on {found['rows']:.0f} {where}.", *([f"{', '.join(parts[1:])}."] if parts[1:] else [])]


def _number(entry: dict[str, Any]) -> str:
    if entry["value"] is None:
        return "–"
    return f"{entry['value']:.4g}" + (" ({:.4g} to {:.4g})".format(*entry["interval"]) if entry["interval"] else "")


def _bare(entry: dict[str, Any]) -> str:
    return "–" if entry["value"] is None else f"{entry['value']:.4f}"


def _text(entry: dict[str, Any]) -> str:
    return _bare(entry) + (" ({:.4f} to {:.4f})".format(*entry["interval"]) if entry["interval"] else "")
