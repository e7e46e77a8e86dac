"""The inner loop of reading columns of numbers that blanks keep apart."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lowtide.compiled import compiled

_NEWLINE, _BLANK, _MINUS, _POINT, _ZERO, _NINE, _SEMICOLON = 10, 32, 45, 46, 48, 57, 59
# Up to here a float holds every whole number, so mantissa / power of ten is rounded once: exactly
# what reading the text would give.
_MOST = 2**53 // 10 - 1


@compiled()
def parse_columns(
    data: npt.NDArray[np.uint8],
    at: int,
    whole: npt.NDArray[np.bool_],
    numbers: npt.NDArray[np.float64],
) -> int:
    """Read lines of numbers; return how many there are, or −1 where one is not plain.

    Empty lines and lines that begin with `;` are passed over, as are columns after the last.

    Args:
        whole: Which columns hold whole numbers only.
    """
    columns, end = numbers.shape[0], data.size
    row = 0
    while at < end:
        column = 0
        while True:
            while at < end and data[at] <= _BLANK and data[at] != _NEWLINE:
                at += 1
            if at >= end or data[at] == _NEWLINE or column == columns:
                break
            if column == 0 and data[at] == _SEMICOLON:
                break
            negative = data[at] == _MINUS
            if negative:
                at += 1
            mantissa, scale, digits = 0, 1.0, 0
            while at < end and _ZERO <= data[at] <= _NINE:
                if mantissa > _MOST:
                    return -1
                mantissa = mantissa * 10 + (data[at] - _ZERO)
                digits += 1
                at += 1
            if at < end and data[at] == _POINT:
                at += 1
                while at < end and _ZERO <= data[at] <= _NINE:
                    if mantissa > _MOST or scale > 1e20:
                        return -1
                    mantissa = mantissa * 10 + (data[at] - _ZERO)
                    scale *= 10.0
                    digits += 1
                    at += 1
            value = mantissa / scale
            plain = at >= end or data[at] <= _BLANK
            if digits == 0 or not plain or (whole[column] and value != np.floor(value)):
                return -1
            numbers[column, row] = -value if negative else value
            column += 1
        if 0 < column < columns:
            return -1
        if column == columns:
            row += 1
        while at < end and data[at] != _NEWLINE:
            at += 1
        at += 1
    return row
