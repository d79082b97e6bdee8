"""Messages of common Windows events, for event log files.

A file contains the number and data of an event; the message text is in a resource of the program that wrote it, on the
original machine. This module has the messages of events that are common in the Security and System logs, and the texts
of parameters such as `%%1842`. Other events are shown with their data only.
"""

from __future__ import annotations

import re

# Provider names are case-folded, because versions of Windows spell them differently.
_SECURITY = "microsoft-windows-security-auditing"
_SERVICES = "service control manager"

# The wording of Windows itself, so that it can be searched for on the web.
_SENTENCES: dict[str, dict[int, str]] = {
    _SECURITY: {
        4608: "Windows is starting up.",
        4609: "Windows is shutting down.",
        4616: "The system time was changed.",
        4624: "An account was successfully logged on.",
        4625: "An account failed to log on.",
        4634: "An account was logged off.",
        4647: "User initiated logoff.",
        4648: "A logon was attempted using explicit credentials.",
        4656: "A handle to an object was requested.",
        4657: "A registry value was modified.",
        4658: "The handle to an object was closed.",
        4660: "An object was deleted.",
        4661: "A handle to an object was requested.",
        4662: "An operation was performed on an object.",
        4663: "An attempt was made to access an object.",
        4670: "Permissions on an object were changed.",
        4672: "Special privileges assigned to new logon.",
        4673: "A privileged service was called.",
        4674: "An operation was attempted on a privileged object.",
        4688: "A new process has been created.",
        4689: "A process has exited.",
        4696: "A primary token was assigned to process.",
        4697: "A service was installed in the system.",
        4698: "A scheduled task was created.",
        4699: "A scheduled task was deleted.",
        4700: "A scheduled task was enabled.",
        4701: "A scheduled task was disabled.",
        4702: "A scheduled task was updated.",
        4719: "System audit policy was changed.",
        4720: "A user account was created.",
        4722: "A user account was enabled.",
        4723: "An attempt was made to change an account's password.",
        4724: "An attempt was made to reset an account's password.",
        4725: "A user account was disabled.",
        4726: "A user account was deleted.",
        4728: "A member was added to a security-enabled global group.",
        4729: "A member was removed from a security-enabled global group.",
        4732: "A member was added to a security-enabled local group.",
        4733: "A member was removed from a security-enabled local group.",
        4735: "A security-enabled local group was changed.",
        4738: "A user account was changed.",
        4740: "A user account was locked out.",
        4756: "A member was added to a security-enabled universal group.",
        4767: "A user account was unlocked.",
        4768: "A Kerberos authentication ticket (TGT) was requested.",
        4769: "A Kerberos service ticket was requested.",
        4771: "Kerberos pre-authentication failed.",
        4776: "The computer attempted to validate the credentials for an account.",
        4778: "A session was reconnected to a Window Station.",
        4779: "A session was disconnected from a Window Station.",
        4797: "An attempt was made to query the existence of a blank password for an account.",
        4798: "A user's local group membership was enumerated.",
        4799: "A security-enabled local group membership was enumerated.",
        4902: "The Per-user audit policy table was created.",
        4904: "An attempt was made to register a security event source.",
        4905: "An attempt was made to unregister a security event source.",
        4907: "Auditing settings on object were changed.",
        4946: "A change has been made to Windows Firewall exception list. A rule was added.",
        5024: "The Windows Firewall Service has started successfully.",
        5033: "The Windows Firewall Driver has started successfully.",
        5058: "Key file operation.",
        5059: "Key migration operation.",
        5061: "Cryptographic operation.",
        5140: "A network share object was accessed.",
        5145: "A network share object was checked to see whether client can be granted desired access.",
        5156: "The Windows Filtering Platform has permitted a connection.",
        5157: "The Windows Filtering Platform has blocked a connection.",
        5379: "Credential Manager credentials were read.",
    },
    "microsoft-windows-eventlog": {
        1100: "The event logging service has shut down.",
        1102: "The audit log was cleared.",
        104: "A log file was cleared.",
    },
    "eventlog": {
        6005: "The Event log service was started.",
        6006: "The Event log service was stopped.",
        6008: "The previous system shutdown was unexpected.",
        6009: "Microsoft Windows version information at startup.",
        6013: "The system uptime, in seconds, was reported.",
    },
    _SERVICES: {
        7000: "A service failed to start.",
        7001: "A service depends on a service which failed to start.",
        7009: "A timeout was reached while waiting for a service to connect.",
        7011: "A timeout was reached while waiting for a transaction response from a service.",
        7022: "A service hung on starting.",
        7023: "A service terminated with an error.",
        7024: "A service terminated with a service-specific error.",
        7026: "Boot-start or system-start drivers failed to load.",
        7031: "A service terminated unexpectedly; a corrective action will be taken.",
        7034: "A service terminated unexpectedly.",
        7035: "A service was sent a control.",
        7036: "A service entered another state.",
        7040: "The start type of a service was changed.",
        7045: "A service was installed in the system.",
    },
    "microsoft-windows-kernel-general": {
        1: "The system time has changed.",
        12: "The operating system started.",
        13: "The operating system is shutting down.",
    },
    "microsoft-windows-kernel-power": {
        41: "The system has rebooted without cleanly shutting down first.",
        42: "The system is entering sleep.",
        107: "The system has resumed from sleep.",
        109: "The kernel power manager has initiated a shutdown transition.",
    },
    "user32": {1074: "A process has initiated a restart or shutdown of the computer."},
    "application error": {1000: "An application failed."},
    "application hang": {1002: "A program stopped interacting with Windows and was closed."},
    "microsoft-windows-windowsupdateclient": {
        19: "Installation Successful: Windows successfully installed an update.",
        20: "Installation Failure: Windows failed to install an update.",
        43: "Installation Started: Windows has started installing an update.",
        44: "Windows Update started downloading an update.",
    },
    "microsoft-windows-sysmon": {
        1: "Process Create.",
        2: "File creation time changed.",
        3: "Network connection detected.",
        4: "Sysmon service state changed.",
        5: "Process terminated.",
        6: "Driver loaded.",
        7: "Image loaded.",
        8: "CreateRemoteThread detected.",
        10: "Process accessed.",
        11: "File created.",
        12: "Registry object added or deleted.",
        13: "Registry value set.",
        22: "Dns query.",
    },
}

# From msobjs.dll, which the security log refers to by number.
_SECURITY_PARAMETERS = {
    1536: "Unused message ID", 1537: "DELETE", 1538: "READ_CONTROL", 1539: "WRITE_DAC", 1540: "WRITE_OWNER",
    1541: "SYNCHRONIZE", 1542: "ACCESS_SYS_SEC", 1601: "Not Available", 1792: "<value not set>",
    1793: "<value changed, but not displayed>", 1794: "<never>", 1795: "Enabled", 1796: "Disabled", 1797: "All",
    1832: "Identification", 1833: "Impersonation", 1840: "Delegation", 1841: "Denied by Process Trust Label ACE",
    1842: "Yes", 1843: "No", 1844: "System", 1845: "Not Available", 1846: "Default", 1848: "DisallowMmConfig",
    1936: "TokenElevationTypeDefault (1)", 1937: "TokenElevationTypeFull (2)", 1938: "TokenElevationTypeLimited (3)",
    2048: "Account Enabled", 2049: "'Home Directory Required' - Disabled",
    2050: "'Password Not Required' - Disabled", 2052: "'Normal Account' - Disabled",
    2057: "'Don't Expire Password' - Disabled", 2080: "Account Disabled",
    2081: "'Home Directory Required' - Enabled", 2082: "'Password Not Required' - Enabled",
    2084: "'Normal Account' - Enabled", 2089: "'Don't Expire Password' - Enabled",
    2304: "An Error occured during Logon.", 2305: "The specified user account has expired.",
    2306: "The NetLogon component is not active.", 2307: "Account locked out.",
    2308: "The user has not been granted the requested logon type at this machine.",
    2309: "The specified account's password has expired.", 2310: "Account currently disabled.",
    2311: "Account logon time restriction violation.", 2312: "User not allowed to logon at this computer.",
    2313: "Unknown user name or bad password.", 2314: "Domain sid inconsistent.",
    2315: "Smartcard logon is required and was not used.", 2404: "Open Key File.", 2405: "Delete Key File.",
    2406: "Read persisted key from file.", 2407: "Write persisted key to file.", 2457: "Not Available",
    2458: "Read persisted key from file.", 2459: "Write persisted key to file.", 2480: "Open Key.",
    2481: "Create Key.", 2482: "Delete Key.", 2499: "Machine key.", 2500: "User key.",
    4416: "ReadData (or ListDirectory)", 4417: "WriteData (or AddFile)", 4418: "AppendData (or AddSubdirectory)",
    4419: "ReadEA", 4420: "WriteEA", 4421: "Execute/Traverse", 4422: "DeleteChild", 4423: "ReadAttributes",
    4424: "WriteAttributes", 4432: "Query key value", 4433: "Set key value", 4434: "Create sub-key",
    4435: "Enumerate sub-keys", 4436: "Notify about changes to keys", 4437: "Create Link",
    8448: "Success removed", 8449: "Success Added", 8450: "Failure removed", 8451: "Failure added",
    14592: "Inbound", 14593: "Outbound", 14597: "Transport", 14608: "Resource Assignment", 14610: "Receive/Accept",
    14611: "Connect",
}  # fmt: skip
# System error codes (winerror.h): the parameters of the Service Control Manager are messages of kernel32.dll.
_SERVICE_PARAMETERS = {
    1: "Incorrect function.", 2: "The system cannot find the file specified.",
    3: "The system cannot find the path specified.", 5: "Access is denied.",
    32: "The process cannot access the file because it is being used by another process.",
    50: "The request is not supported.", 87: "The parameter is incorrect.",
    126: "The specified module could not be found.", 127: "The specified procedure could not be found.",
    1053: "The service did not respond to the start or control request in a timely fashion.",
    1056: "An instance of the service is already running.",
    1058: "The service cannot be started, either because it is disabled or because it has no enabled devices "
    "associated with it.",
    1060: "The specified service does not exist as an installed service.",
    1062: "The service has not been started.", 1066: "The service has returned a service-specific error code.",
    1067: "The process terminated unexpectedly.", 1068: "The dependency service or group failed to start.",
    1069: "The service did not start due to a logon failure.",
    1070: "After starting, the service hung in a start-pending state.",
    1075: "The dependency service does not exist or has been marked for deletion.",
    1115: "A system shutdown is in progress.",
}  # fmt: skip
# By provider, because each has its table of messages: `%%1` in the data of another provider is not an error code.
_PARAMETERS = {_SECURITY: _SECURITY_PARAMETERS, "security": _SECURITY_PARAMETERS, _SERVICES: _SERVICE_PARAMETERS}
_PARAMETER = re.compile(r"%%(\d{1,5})\b")


def sentence(source: str, event_id: int | None) -> str:
    """Return the message of an event by its provider and number, or an empty string."""
    return _SENTENCES.get(source.casefold(), {}).get(event_id or 0, "")


def with_parameters(source: str, text: str) -> str:
    """Replace the known parameters of a provider in a text; unknown ones are unchanged."""
    table = _PARAMETERS.get(source.casefold()) if "%%" in text else None
    return text if table is None else _PARAMETER.sub(lambda match: table.get(int(match[1]), match[0]), text)
