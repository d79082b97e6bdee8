"""Registry on every platform: the Windows registry, hive files, a portable registry, and platform settings."""
