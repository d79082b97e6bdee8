"""The weight of each feature. Written by `benchmarks/fit_memory_weights.py`, which says how.

Which of these apply is a matter of the kind of memory: without author and thread, without author in a thread, by a
person, or by a user and an assistant. The first four are for words alone, the last four for words and meanings.
"""

from __future__ import annotations

_TABLE: tuple[tuple[str, float, float, float, float, float, float, float, float], ...] = (
    # feature               notes    lines   people     chat    notes    lines   people     chat
    ("words",            0.730,   1.121,   1.274,   0.862,   0.469,   0.962,   0.869,   0.596),
    ("head",            -4.435,   1.233,   1.117,   2.894,  -7.115,   0.406,   1.319,   2.260),
    ("around",          -0.646,   2.117,   2.402,   0.335,  -1.118,   1.983,   2.191,   0.204),
    ("further_around",  10.225,   3.010,   2.497,   1.622,  11.395,   2.868,   2.600,   1.577),
    ("before",           0.000,   0.525,   0.961,  -0.001,   0.000,   0.206,   0.584,  -0.150),
    ("after",            0.000,   0.390,   0.221,   0.233,   0.000,   0.349,   0.224,   0.154),
    ("before_two",       0.000,   0.412,   0.702,  -0.072,   0.000,   0.265,   0.482,  -0.060),
    ("thread_best",      0.730,   0.683,   0.983,   0.466,   0.723,   0.679,   0.913,   0.384),
    ("thread_share",    -0.646,   1.794,   0.093,   1.746,  -0.817,   1.416,  -0.252,   1.635),
    ("named",            0.000,   0.000,   3.051,   0.375,   0.000,   0.000,   2.596,   0.376),
    ("named_head",       0.000,   0.000,  -0.210,   1.758,   0.000,   0.000,  -0.450,   1.741),
    ("in_company",       0.000,   0.000,   1.797,   0.000,   0.000,   0.000,   1.158,   0.000),
    ("substance",       -0.527,  -0.611,  -0.280,  -0.950,  -0.198,  -0.484,   0.076,  -0.871),
    ("broad_substance", -0.070,   0.020,   0.930,   0.210,  -0.088,  -0.011,   0.562,   0.228),
    ("asks",            -0.097,  -0.201,  -0.730,   0.146,  -0.179,  -0.192,  -0.654,   0.131),
    ("answers",          0.000,   0.503,   0.804,  -0.072,   0.000,   0.518,   0.797,  -0.032),
    ("opens",            0.000,   0.710,   1.465,   0.129,   0.000,   0.515,   0.806,  -0.165),
    ("replies",         -0.415,  -0.301,  -0.050,  -0.480,  -0.324,  -0.324,   0.037,  -0.572),
    ("to_other",        -0.581,  -0.607,  -0.431,  -0.347,  -0.533,  -0.575,  -0.288,  -0.366),
    ("of_self",          1.377,   1.018,   0.523,   0.240,   1.418,   1.146,   0.518,   0.266),
    ("names",            0.002,  -0.012,   0.263,   0.093,  -0.223,  -0.036,   0.288,   0.229),
    ("number",           0.230,   0.276,   0.672,   0.030,   0.405,   0.170,   0.711,   0.037),
    ("time",             0.342,   0.353,   0.272,   0.259,   0.398,   0.347,   0.295,   0.172),
    ("when_time",        1.479,   1.786,   1.921,   0.928,   1.429,   1.982,   2.067,   0.973),
    ("standing",         4.008,   4.728,   0.000,   4.315,   3.941,   4.468,   0.000,   4.105),
    ("at_all",           1.163,   1.387,  -1.517,   3.560,  -1.179,  -0.233,  -4.230,   2.029),
    ("meaning",          0.000,   0.000,   0.000,   0.000,   5.651,   5.666,   6.791,   4.464),
)  # fmt: skip


def _columns(first: int, features: int) -> tuple[tuple[float, ...], ...]:
    """By kind of memory, in the order of `ids.py`; the user and the assistant share one."""
    columns = list(zip(*(row[1:] for row in _TABLE[:features]), strict=True))
    return (*columns[first : first + 4], columns[first + 3])


BY_WORDS = _columns(0, len(_TABLE) - 1)
BY_MEANING = _columns(4, len(_TABLE))
