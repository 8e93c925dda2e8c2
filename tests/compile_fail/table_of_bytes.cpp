// wants: a table of pages is of std::int32_t or std::int64_t
#include <heed/heed.hpp>

heed::page_table wrong(const unsigned char* numbers) { return heed::page_table(numbers, 2, 3); }
