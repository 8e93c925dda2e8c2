#pragma once

#include <algorithm>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

namespace support {

/// The options of an example: each is a name, what it is for, and the variable it sets. --help is
/// made from the same list.
class command_line {
 public:
  command_line(std::string program, std::string purpose)
      : program_(std::move(program)), purpose_(std::move(purpose)) {}

  /// `--name`: sets target to true.
  void flag(const std::string& name, const std::string& help, bool& target) {
    options_.push_back(
        {name, "", help, "", [&target](const std::string&) { return target = true; }});
  }
  /// `--name VALUE` or `--name=VALUE`.
  void option(const std::string& name, const std::string& value, const std::string& help,
              std::string& target) {
    options_.push_back({name, value, help, value, [&target](const std::string& text) {
                          target = text;
                          return !text.empty();
                        }});
  }
  /// The same for a whole number of 1 or more.
  void option(const std::string& name, const std::string& value, const std::string& help,
              int& target) {
    options_.push_back(
        {name, value, help, "whole number of 1 or more", [&target](const std::string& text) {
           const bool digits =
               !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
           if (!digits || text.size() > 9) return false;
           target = std::stoi(text);
           return target >= 1;
         }});
  }

  /// The words that have no name before them: appended to target, with a space between.
  void words(const std::string& value, const std::string& help, std::string& target) {
    options_.push_back({"", value, help, value, [&target](const std::string& text) {
                          if (!target.empty()) target += ' ';
                          target += text;
                          return !target.empty();
                        }});
  }

  /// Reads the arguments. The status to leave with, when the program should not go on: 0 after
  /// --help, 1 after a mistake.
  std::optional<int> parse(int count, const char* const* arguments) const {
    for (int i = 1; i < count; ++i) {
      std::string name = arguments[i], value;
      if (name == "--help" || name == "-h") return print_help();
      const std::size_t equals = name.find('=');
      const bool is_word = name.compare(0, 1, "-") != 0;
      const bool has_value =
          is_word || (name.compare(0, 2, "--") == 0 && equals != std::string::npos);
      if (is_word) {
        value.swap(name);
      } else if (has_value) {
        value = name.substr(equals + 1);
        name.resize(equals);
      }
      const auto found = std::find_if(options_.begin(), options_.end(),
                                      [&](const entry& e) { return e.name == name; });
      if (found == options_.end())
        return mistake("there is no option '" + std::string(arguments[i]) + "'");
      if (found->value.empty() && has_value) return mistake(name + " takes no value");
      if (!found->value.empty() && !has_value) {
        if (i + 1 == count) return mistake(name + " needs a " + found->needs);
        value = arguments[++i];
      }
      if (!found->set(value))
        return mistake((is_word ? program_ : name) + " needs a " + found->needs +
                       (value.empty() ? "" : ", not '" + value + "'"));
    }
    return std::nullopt;
  }

 private:
  struct entry {
    std::string name, value, help, needs;  // needs: what the value has to be
    std::function<bool(const std::string&)> set;
  };

  int print_help() const {
    std::cout << program_ << ": " << purpose_ << "\n\n";
    std::size_t width = 6;
    for (const entry& e : options_) width = (std::max)(width, e.name.size() + 1 + e.value.size());
    const auto line = [&](const std::string& left, const std::string& help) {
      std::cout << "  " << left << std::string(width + 2 - left.size(), ' ') << help << "\n";
    };
    for (const entry& e : options_)
      line(e.name + (e.name.empty() || e.value.empty() ? "" : " ") + e.value, e.help);
    line("--help", "this page");
    return 0;
  }
  int mistake(const std::string& what) const {
    std::string shown = what;
    for (char& c : shown)
      if (static_cast<unsigned char>(c) < 32 || c == 127)
        c = '?';  // what somebody typed must not steer the terminal
    std::cerr << program_ << ": " << shown << " (--help lists the options)\n";
    return 1;
  }

  std::string program_, purpose_;
  std::vector<entry> options_;
};

}  // namespace support
