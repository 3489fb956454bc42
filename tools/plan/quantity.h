// Quantities as people write them in this field: "7B" parameters, "80GB" of memory, "400T" FLOP/s. Decimal
// suffixes mean powers of 1000, with an i (GiB) powers of 1024.
#pragma once
#include <string>
#include <string_view>

namespace peal::tools {

// "7B", "1.3G", "350M", "6738149376", "1e9": B is 10^9. Throws UsageError, which names `what`.
double parseCount(std::string_view text, std::string_view what);

// "80GB", "25MiB", "50G", "5e10", "8192B": B alone is a byte. Throws UsageError, which names `what`.
double parseAmount(std::string_view text, std::string_view what);

// The same of bytes per second, or in bits, as links are sold: "400Gbit" is 50e9.
double parseRate(std::string_view text, std::string_view what);

// In seconds: "5us", "1.5ms", "2s", "5e-6". Throws UsageError, which names `what`.
double parseTime(std::string_view text, std::string_view what);

// Four digits and a decimal suffix: "56.88 G", "1.120 T", "0".
std::string formatAmount(double amount);

// "1.511 s", "75 ms", "12.5 us", "0".
std::string formatSeconds(double seconds);

}  // namespace peal::tools
