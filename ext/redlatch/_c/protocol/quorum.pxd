# The types of src/redlatch/protocol/quorum.py when it is compiled. A .pxd cannot type the locals of a generator, so
# that file alone has its annotations compiled, and they mean the classes imported here.

cimport cython

from redlatch._c.protocol.ballot cimport Ballot
from redlatch._c.protocol.commands cimport Command
from redlatch._c.protocol.effects cimport Answer, Pause, Tell
from redlatch._c.protocol.hold cimport Hold
from redlatch._c.protocol.outcome cimport end_release, is_final
from redlatch._c.protocol.policy cimport Policy
from redlatch._c.protocol.waiting cimport Lines
