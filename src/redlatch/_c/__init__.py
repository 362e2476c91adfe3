"""The compiled build of the hot modules, by the names they have in `redlatch`.

`redlatch._c.wire.engine` is `redlatch/wire/engine.py` compiled as it stands, and so on (setup.py lists them). A hot
module imports its hot siblings relatively, so that each build gets its own, and everything else absolutely, so that
both builds share it.
"""
