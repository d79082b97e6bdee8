"""How much each feature speaks for a memory. Written by `benchmarks/fit_memory_weights.py`, which says how.

Which of these apply is a matter of who wrote the memory: nobody and it stands alone, nobody and it is in a thread, a
person, or a user and an assistant. The first four are for words alone, the last four for words and meanings.
"""

from __future__ import annotations

_TABLE: tuple[tuple[str, float, float, float, float, float, float, float, float], ...] = (
    # feature               notes    lines   people     chat    notes    lines   people     chat
    ("words",            0.668,   1.040,   1.274,   0.692,   0.341,   0.893,   0.860,   0.478),
    ("head",            -3.922,   1.258,   0.998,   2.329,  -6.551,   0.548,   1.287,   2.158),
    ("around",          -0.445,   2.182,   2.666,   0.250,  -1.233,   2.070,   2.294,   0.270),
    ("further_around",   9.274,   2.974,   2.422,   1.658,  10.771,   2.798,   2.511,   1.576),
    ("before",           0.000,   0.487,   0.940,  -0.048,   0.000,   0.213,   0.586,  -0.154),
    ("after",            0.000,   0.340,   0.196,   0.197,   0.000,   0.342,   0.214,   0.166),
    ("before_two",       0.000,   0.361,   0.686,  -0.022,   0.000,   0.244,   0.480,   0.012),
    ("thread_best",      0.668,   0.587,   0.945,   0.267,   0.777,   0.644,   0.899,   0.244),
    ("thread_share",    -0.445,   1.702,  -0.299,   2.108,  -0.505,   1.261,  -0.421,   1.952),
    ("named",            0.000,   0.000,   2.962,   0.266,   0.000,   0.000,   2.502,   0.351),
    ("named_head",       0.000,   0.000,  -0.162,   2.499,   0.000,   0.000,  -0.404,   2.226),
    ("in_company",       0.000,   0.000,   1.738,   0.000,   0.000,   0.000,   1.091,   0.000),
    ("substance",       -0.517,  -0.606,  -0.266,  -0.955,  -0.207,  -0.480,   0.066,  -0.839),
    ("broad_substance", -0.087,   0.080,   1.124,   0.194,   0.065,   0.098,   0.561,   0.260),
    ("asks",            -0.122,  -0.197,  -0.707,   0.149,  -0.167,  -0.194,  -0.652,   0.126),
    ("answers",          0.000,   0.538,   0.768,   0.120,   0.000,   0.569,   0.791,   0.149),
    ("opens",            0.000,   0.711,   1.441,   0.010,   0.000,   0.516,   0.819,  -0.248),
    ("replies",         -0.419,  -0.346,  -0.069,  -0.438,  -0.307,  -0.341,   0.037,  -0.547),
    ("to_other",        -0.540,  -0.614,  -0.418,  -0.335,  -0.528,  -0.583,  -0.298,  -0.358),
    ("of_self",          1.420,   1.037,   0.566,   0.269,   1.434,   1.157,   0.500,   0.308),
    ("names",            0.020,   0.017,   0.266,   0.171,  -0.224,  -0.022,   0.307,   0.250),
    ("number",           0.169,   0.410,   0.785,   0.197,   0.452,   0.302,   0.772,   0.258),
    ("time",             0.299,   0.340,   0.252,   0.324,   0.389,   0.340,   0.310,   0.182),
    ("when_time",        1.523,   1.707,   1.937,   0.678,   1.470,   1.942,   2.036,   0.871),
    ("standing",         2.096,   2.265,   0.000,   2.081,   1.792,   2.035,   0.000,   1.887),
    ("at_all",           1.097,   1.322,  -1.649,   3.241,  -1.299,  -0.478,  -4.379,   1.276),
    ("meaning",          0.000,   0.000,   0.000,   0.000,   5.364,   5.437,   6.572,   4.256),
)  # fmt: skip


def _columns(first: int, features: int) -> tuple[tuple[float, ...], ...]:
    """By kind of memory, in the order of `desk.py`; the user and the assistant share one."""
    columns = list(zip(*(row[1:] for row in _TABLE[:features]), strict=True))
    return (*columns[first : first + 4], columns[first + 3])


BY_WORDS = _columns(0, len(_TABLE) - 1)
BY_MEANING = _columns(4, len(_TABLE))
