#pragma once

#include <heed/detail/abi.hpp>

// The page that heatmap.hpp fills, as text: style, body and program, each in a file of its own
// under heatmap/, whose first and last line make it a string. The program reads JSON blocks, #data
// and the .cells of each map, and reaches nothing outside itself; every label enters the document
// as text, never as markup.

HEED_NAMESPACE_BEGIN
namespace detail {

inline constexpr const char* heatmap_style =
#include <heed/detail/heatmap/page.css>
    ;

inline constexpr const char* heatmap_body =
#include <heed/detail/heatmap/page.html>
    ;

inline constexpr const char* heatmap_data_program =
#include <heed/detail/heatmap/cells.js>
    ;

inline constexpr const char* heatmap_view_program =
#include <heed/detail/heatmap/view.js>
    ;

inline constexpr const char* heatmap_input_program =
#include <heed/detail/heatmap/input.js>
    ;

}  // namespace detail
HEED_NAMESPACE_END
