from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.quorum cimport Quorum


cpdef abandon(Quorum quorum, driver, Hold hold, ticket)
cpdef resend_release(Quorum quorum, driver, Hold hold, ticket, error)
cpdef leave_queue(Quorum quorum, driver, Hold hold)
