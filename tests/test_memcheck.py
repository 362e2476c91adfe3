"""The compiled build under valgrind; see `memcheck`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.builds import implementation_named
from support.masters import Farm
from support.memcheck import memcheck, ours


@pytest.mark.slow("the compiled build under valgrind")
@pytest.mark.timeout(700)
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="there is no valgrind here")
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a build with sanitizers does not run under valgrind")
def test_valgrind_finds_no_error_in_our_code(farm: Farm, tmp_path: Path) -> None:
    implementation_named("c")
    assert memcheck(farm.urls(3), tmp_path) == []


LOG = """==7== 48 bytes in 1 blocks are definitely lost in loss record 3 of 9
==7==    at 0x484: malloc (vg_replace_malloc.c:381)
==7==    by 0x8CF: {frame}
==7==    by 0x4AD: PyObject_Call (call.c:1)
==7==
==7== ERROR SUMMARY: 1 errors from 1 contexts
"""


@pytest.mark.parametrize(
    ("frame", "complaints"),
    [
        ("__pyx_f_8redlatch_2_c_4wire_6engine_5Fleet__feed (engine.c:7)", 1),
        ("??? (in /x/redlatch/_c/wire/engine/net.cpython-311-x86_64-linux-gnu.so)", 1),
        ("dict_new (dictobject.c:7)", 0),
        ("import_find_and_load (import.c:1748)\n==7==    by 0x8: __pyx_pymod_exec_net (net.c:1)", 0),
        ("??? (in /x/redlatch/_c/_library.so)\n==7==    by 0x8: PyModule_ExecDef (moduleobject.c:419)", 0),
        ("??? (in /x/redlatch/_c/_library.so)\n==7==    by 0x8: import_find_and_load (import.c:1748)", 1),
    ],
)
def test_complaints_about_our_code_are_distinguished_from_others(frame: str, complaints: int) -> None:
    assert len(ours(LOG.format(frame=frame))) == complaints
