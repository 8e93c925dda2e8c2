#include "../examples/support/command_line.hpp"
#include "../examples/support/table.hpp"
#include "../examples/support/text.hpp"

#include "catch.hpp"

#include <sstream>
#include <string>
#include <vector>

using words = std::vector<std::string>;

TEST_CASE("Words are parted by what is no letter") {
  CHECK(support::words_of("").empty());
  CHECK(support::words_of(" \n--' ").empty());
  CHECK(support::words_of("Oh dear! Oh dear!") == words{"Oh", "dear", "Oh", "dear"});
  CHECK(support::words_of("a waistcoat-pocket, - it's") == words{"a", "waistcoat-pocket", "it's"});
  CHECK(support::words_of("\xE2\x80\x9C"
                          "book,\xE2\x80\x9D it\xE2\x80\x99s na\xC3\xAFve") ==
        words{"book", "it\xE2\x80\x99s", "na\xC3\xAFve"});
  CHECK(support::words_of("\xE6\xB0\xB4\xE5\x85\x8E") == words{"\xE6\xB0\xB4", "\xE5\x85\x8E"});
}

TEST_CASE("Nothing that steers a terminal comes through") {
  const std::string evil =
      "a\x1b[2Jb\x07"
      "c\xC2\x9B"
      "d\xFF"
      "e\xE2\x80\xAE"
      "f\x7F";
  for (const std::string& word : support::words_of(evil))
    for (const char c : word) CHECK(static_cast<unsigned char>(c) >= 0x20);
  const std::string bad = "\xEF\xBF\xBD";
  CHECK(support::printable(evil) ==
        "a" + bad + "[2Jb" + bad + "c" + bad + "d" + bad + "e" + bad + "f" + bad);
  CHECK(support::words_of("\xE2\x80\xAE").empty());
}

TEST_CASE("Words fold to lower case and clip to a width") {
  CHECK(support::lower_case("Alice") == U"alice");
  CHECK(support::lower_case("\xC3\x89TAT") == U"\u00e9tat");
  CHECK(support::clip("rabbit", 6) == "rabbit");
  CHECK(support::clip("rabbit-hole", 6) == "rabb..");
  CHECK(support::clip("\xE6\xB0\xB4\xE5\x85\x8E\xE6\xB0\xB4", 5) == "\xE6\xB0\xB4..");
}

TEST_CASE("A table lines its columns up") {
  support::table table({"n", "time"});
  table.add({"512", support::seconds(0.0123)});
  table.add({"16384", support::bytes(1536)});
  std::ostringstream out;
  table.print(out);
  CHECK(out.str() == "  n          time\n  512    12.30 ms\n  16384   1.5 KiB\n");
}

TEST_CASE("A command line takes words without a name where they are wanted") {
  std::string question, file;
  support::command_line options("program", "does something");
  options.words("QUESTION", "what to ask", question);
  options.option("--file", "FILE", "a file", file);
  const std::vector<const char*> arguments{"program", "why", "--file", "a", "is = it", "-", "so"};
  CHECK(options.parse(3, arguments.data()) == 1);
  question.clear();
  CHECK(!options.parse(5, arguments.data()));
  CHECK((question == "why is = it" && file == "a"));
  CHECK(options.parse(7, arguments.data()) == 1);
}

TEST_CASE("A command line sets what it names and refuses the rest") {
  bool quick = false;
  std::string file = "default";
  int count = 3;
  support::command_line options("program", "does something");
  options.flag("--quick", "less", quick);
  options.option("--file", "FILE", "a file", file);
  options.option("--count", "N", "a number", count);
  const auto parse = [&](std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "program");
    return options.parse(static_cast<int>(arguments.size()), arguments.data());
  };
  CHECK(!parse({}));
  CHECK((!quick && file == "default"));
  CHECK(!parse({"--quick", "--file", "a=b"}));
  CHECK((quick && file == "a=b"));
  CHECK(!parse({"--file=c=d"}));
  CHECK(file == "c=d");
  CHECK(!parse({"--count", "17"}));
  CHECK(count == 17);
  CHECK(parse({"--help"}) == 0);
  for (const auto& wrong : std::vector<std::vector<const char*>>{{"--fast"},
                                                                 {"quick"},
                                                                 {"--quick=1"},
                                                                 {"--file"},
                                                                 {"--file="},
                                                                 {"--count"},
                                                                 {"--count=0"},
                                                                 {"--count=-2"},
                                                                 {"--count=2x"},
                                                                 {"--count=1.5"},
                                                                 {"--count=99999999999"}})
    CHECK(parse(wrong) == 1);
}
