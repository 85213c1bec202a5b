// Words of the machine's messages.
#pragma once

#include <cstdint>
#include <string>

#include "global_races.h"
#include "races.h"
#include "simt/runtime.h"

namespace simt {

const char* name_of(Collective kind);

std::string hex(uint32_t mask);

// "lanes 0-3, 7"
std::string list(uint32_t lanes);

std::string to_string(const uint3& index);
std::string to_string(const Site& site);

// What the sanitizers' format says of a return address.
std::string symbolize(const void* address, const char* format);

// A race that an access of `thread` makes.
std::string describe(const Race& race, int thread);
std::string describe(const GlobalRace& race, int thread);

}  // namespace simt
