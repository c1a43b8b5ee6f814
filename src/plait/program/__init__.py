"""A plan compiled to instructions per rank: compile, static check, memory, text form."""

from plait.program.check import check_program
from plait.program.compile import FREES_BEHIND, RECEIVES_AHEAD, compile_program
from plait.program.error import ProgramError
from plait.program.instructions import COMPUTE, Instruction, Op, parse_instruction
from plait.program.memory import RankMemory, batch_bytes, predict_memory
from plait.program.memory_check import check_memory
from plait.program.program import TIED_PREFIX, Bucket, Edge, Program, StageTable
from plait.program.stage_memory import MicroBatchMemory, StageMemory
from plait.program.text import format_program, parse_program

__all__ = [
    "COMPUTE",
    "FREES_BEHIND",
    "RECEIVES_AHEAD",
    "TIED_PREFIX",
    "Bucket",
    "Edge",
    "Instruction",
    "MicroBatchMemory",
    "Op",
    "Program",
    "ProgramError",
    "RankMemory",
    "StageMemory",
    "StageTable",
    "batch_bytes",
    "check_memory",
    "check_program",
    "compile_program",
    "format_program",
    "parse_instruction",
    "parse_program",
    "predict_memory",
]
