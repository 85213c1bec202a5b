"""Loops of a kernel's machine code, from its flow of control."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class Instruction:
    text: str  # predicate, opcode, operands
    opcode: str
    target: str | None = None  # label that it names


def innermost_loops(code: list[Instruction], labels: dict[str, int]) -> list[list[int]]:
    """The instructions of each natural loop that has no other inside it, in the order of their addresses."""
    next_of = _successors(code, labels)
    order = _reverse_postorder(next_of)
    position = {block: k for k, block in enumerate(order)}
    before: dict[int, list[int]] = {block: [] for block in order}
    for block in order:
        for successor in next_of[block]:
            before[successor].append(block)
    dominator = _dominators(order, position, before)
    loops: dict[int, set[int]] = {}  # by header
    for block in order:
        for header in next_of[block]:
            if _dominates(header, block, dominator):
                loops.setdefault(header, {header}).update(_body(header, block, before))
    inner = [loop for header, loop in loops.items() if not any(h != header and h in loop for h in loops)]
    ends = _ends(next_of, len(code))
    return sorted([i for block in sorted(loop) for i in range(block, ends[block])] for loop in inner)


def straight_runs(code: list[Instruction], labels: dict[str, int]) -> list[range]:
    """The instructions of each basic block."""
    ends = _ends(_successors(code, labels), len(code))
    return [range(start, end) for start, end in ends.items()]


def _successors(code: list[Instruction], labels: dict[str, int]) -> dict[int, list[int]]:
    """Of every basic block, named by its first instruction. What only runs after a warp has parted (BRA.DIV) is left out."""
    meets: dict[str, list[int]] = {}  # where lanes meet again, by barrier register
    for i in code:
        if i.opcode == "BSSY" or i.opcode.startswith("BSSY."):
            meets.setdefault(_barrier(i), []).append(labels.get(i.target or "", len(code)))
    following: dict[int, list[int]] = {}  # of the last instruction of a block
    starts = {0, *labels.values()}
    for at, i in enumerate(code):
        after = [at + 1] if at + 1 < len(code) else []
        jump = [labels[i.target]] if i.target in labels else []
        base = i.opcode.split(".")[0]
        if (base == "BRA" and not i.opcode.startswith("BRA.DIV")) or (base == "CALL" and jump):
            following[at] = jump + (after if _is_conditional(i) else [])
        elif base in ("EXIT", "RET", "BRX", "JMX"):
            following[at] = after if _is_conditional(i) else []
        elif base == "BSYNC" and after and after[0] not in meets.get(_barrier(i), []):
            later = [meeting for meeting in meets.get(_barrier(i), []) if meeting > at]
            following[at] = [min(later)] if later else after
        else:
            continue
        starts.add(at + 1)
    blocks = sorted(start for start in starts if start < len(code))
    found = {}
    for start, end in zip(blocks, [*blocks[1:], len(code)]):
        found[start] = following.get(end - 1, [end] if end < len(code) else [])
    return found


def _is_conditional(i: Instruction) -> bool:
    operands = i.text.split(i.opcode, 1)[1]
    return i.text.startswith("@") or re.match(r"\s*!?U?P\w+\s*,", operands) is not None


def _barrier(i: Instruction) -> str:
    found = re.search(r"\bB\d+\b", i.text.split(i.opcode, 1)[1])
    return found.group() if found else ""


def _ends(blocks: Iterable[int], size: int) -> dict[int, int]:
    starts = sorted(blocks)
    return dict(zip(starts, [*starts[1:], size]))


def _reverse_postorder(next_of: dict[int, list[int]]) -> list[int]:
    """Of the blocks that are reached from the first."""
    done: list[int] = []
    seen = {0}
    stack = [(0, iter(next_of[0]))]
    while stack:
        block, successors = stack[-1]
        successor = next((s for s in successors if s not in seen), None)
        if successor is None:
            done.append(block)
            stack.pop()
        else:
            seen.add(successor)
            stack.append((successor, iter(next_of[successor])))
    return done[::-1]


def _dominators(order: list[int], position: dict[int, int], before: dict[int, list[int]]) -> dict[int, int]:
    """The immediate dominator of each block; of the first, itself (Cooper, Harvey and Kennedy, 2001)."""
    found = {order[0]: order[0]}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            known = [b for b in before[block] if b in found]
            new = known[0]
            for other in known[1:]:
                while new != other:
                    if position[new] > position[other]:
                        new = found[new]
                    else:
                        other = found[other]
            if found.get(block) != new:
                found[block] = new
                changed = True
    return found


def _dominates(a: int, b: int, dominator: dict[int, int]) -> bool:
    while b != a and dominator[b] != b:
        b = dominator[b]
    return a == b


def _body(header: int, last: int, before: dict[int, list[int]]) -> set[int]:
    body, stack = {header}, [last]
    while stack:
        block = stack.pop()
        if block not in body:
            body.add(block)
            stack.extend(before[block])
    return body
