"""Writes unicode_ranges.hpp: which code points are letters and which are numbers."""
import sys
import unicodedata


def ranges(first_letter):
    found = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code))[0] != first_letter:
            continue
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def table(name, comment, first_letter):
    pieces = [f"{{0x{low:X}, 0x{high:X}}}" for low, high in ranges(first_letter)]
    lines = [f"/// {comment}", f"constexpr code_point_range {name}[] = {{"]
    for at in range(0, len(pieces), 6):
        lines.append("    " + ", ".join(pieces[at : at + 6]) + ("," if at + 6 < len(pieces) else "};"))
    return "\n".join(lines)


print(
    f"""#pragma once

// Made by make_unicode_ranges.py from the Unicode character database {unicodedata.unidata_version}.

namespace smollm2 {{

struct code_point_range {{
  char32_t first, last;
}};

{table("letters", "General categories Lu, Ll, Lt, Lm and Lo, in ascending order.", "L")}

{table("numbers", "General categories Nd, Nl and No, in ascending order.", "N")}

}}  // namespace smollm2"""
)
