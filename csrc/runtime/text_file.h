// Small files by the C library: C++'s streams bring locales, 200 KB of them where a wheel holds the C++ library's part it uses.
#pragma once

#include <cstdio>
#include <string>

namespace headlong {

// The text of a file, to the first 64 KiB; none where it cannot be read.
inline std::string text_of(const std::string& path) {
    std::string text(1 << 16, 0);
    std::FILE* file = std::fopen(path.c_str(), "r");
    if (file == nullptr) return {};
    text.resize(std::fread(text.data(), 1, text.size(), file));
    std::fclose(file);
    return text;
}

}  // namespace headlong
