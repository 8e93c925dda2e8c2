#pragma once

#include <fstream>
#include <string>
#include <vector>

namespace support {

/// One measured call, a point of a plot.
struct point {
  std::string name;
  long n = 0;
  double seconds = 0, extra_bytes = 0;  // 0 bytes: not drawn
};

/// Writes the form that bench/plot.py draws. Whether it could be written.
inline bool write_points(const std::string& path, const std::vector<point>& points) {
  std::ofstream file(path);
  file << "{\"benchmarks\": [";
  for (std::size_t p = 0; p < points.size(); ++p)
    file << (p == 0 ? "\n" : ",\n") << "  {\"name\": \"" << points[p].name << "/n:" << points[p].n
         << "\", \"real_time\": " << points[p].seconds
         << ", \"time_unit\": \"s\", \"extra_bytes\": " << points[p].extra_bytes << "}";
  file << "\n]}\n";
  return bool(file.flush());
}

}  // namespace support
