"""A registry on every system: that of Windows, hive files, a portable one, and what other systems have instead."""
