"""The audit log: who was served by which weights and what was said, in a chain of hashes that shows any change.

turn or outcome -> redaction -> AuditRow -> AuditLog -> one file a day -> read_audit, verify
"""

from tasks.canary.audit.log import AuditLog
from tasks.canary.audit.reading import read_audit, training_sessions
from tasks.canary.audit.rows import SCHEMA, AuditRow
from tasks.canary.audit.verifying import Fault, Verified, verify

__all__ = ["SCHEMA", "AuditLog", "AuditRow", "Fault", "Verified", "read_audit", "training_sessions", "verify"]
