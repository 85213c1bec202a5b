"""An emulator of sm_90 machine code, 32 lanes of several warps at a time in numpy. It returns what compiled kernels return and
counts the instructions that their warps issue. It knows nothing of time.

program.py   kernels of a library: instructions, labels, sizes
operands.py  operands of an instruction, read from and written to the registers of the warps that run
integers.py  instructions on integers, bits and predicates
floats.py    on fp32, fp64 and pairs of halves; conversions
data.py      constants, memory, shuffles, votes, special registers
matrices.py  tensor cores: HMMA, MOVM
warp.py      registers of warps; how their lanes part, meet and wait
call.py      a launch: parameters, blocks, what it counted

Instructions are decoded from nvdisasm's text. What an instruction does is in a table by opcode (operands.instruction); one
that has no entry, or a modifier that its entry does not name, is an error that names it.
"""

from .call import Call, Counts, run
from .operands import EmulatorError
from .program import Library, Program

__all__ = ["Call", "Counts", "EmulatorError", "Library", "Program", "run"]
