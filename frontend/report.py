"""What cannot be imported: every unsupported op with its count and first source line, raised once."""

from __future__ import annotations

from dataclasses import dataclass, field


class UnsupportedCaseError(ValueError):
    """One use of an op that mlc has no meaning for; the text says what about it, and what to do instead."""


@dataclass
class Finding:
    """One unsupported op or case: how often it occurs and where first.

    `is_misfit`: the op is known, but its operands' sizes or ranks rule out that it runs at all.
    """

    op: str
    reason: str
    first_loc: str
    count: int = 1
    is_misfit: bool = False


class UnsupportedError(ValueError):
    """A model that uses what mlc cannot compile; `findings` lists everything at once."""

    def __init__(self, source: str, findings: list[Finding]) -> None:
        self.findings = findings
        width = max(len(finding.op) for finding in findings)
        lines = [f"  {f.op:<{width}}  x{f.count:<4} first at {f.first_loc}: {f.reason}" for f in findings]
        kinds = f"{len(findings)} op{'s' if len(findings) > 1 else ''}"
        super().__init__(f"{source}: {kinds} cannot be compiled\n" + "\n".join(lines))


@dataclass
class Report:
    """Collects findings while a model is read."""

    source: str
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)

    @property
    def holds_misfits_only(self) -> bool:
        """Whether something was added, and all of it says that operands do not fit."""
        return bool(self.findings) and all(finding.is_misfit for finding in self.findings.values())

    def add_all(self, other: Report) -> None:
        """Adds what another report holds."""
        for key, finding in other.findings.items():
            known = self.findings.setdefault(key, finding)
            if known is not finding:
                known.count += finding.count

    def add(self, op: str, loc: object, reason: str = "", *, is_misfit: bool = False) -> None:
        """Counts one use of `op`; the same op and reason at other places is one finding."""
        reason = reason or "mlc has no such op; rewrite it in supported ops, or ask for it"
        finding = self.findings.get((op, reason))
        if finding is None:
            self.findings[op, reason] = Finding(op, reason, str(loc), is_misfit=is_misfit)
        else:
            finding.count += 1

    def raise_if_any(self) -> None:
        """Raises: UnsupportedError when something was added."""
        if self.findings:
            raise UnsupportedError(self.source, list(self.findings.values()))
