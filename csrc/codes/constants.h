// The numbers of the codes' readers that were chosen by trying, in one table; those that a proof gives stand beside it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headlong {

// Ids and draws.
constexpr float kNarrow = 0.5f;          // of radii that may fail: how far below its estimate a class is expected to be at worst
constexpr size_t kRowsAtOnce = 256;      // scored at once: threads that share fewer wait longer for each other than for the rows
constexpr int kMostRedrawn = 16;         // draws of one that may be beyond a nucleus: each halves what is left to draw from, about
constexpr int64_t kHeldBytes = int64_t{1} << 25;  // by queries that are answered at once, about; an interrupt waits while they are prepared

// What a scan gathers for a normaliser, and for a functional of the distribution.
struct Effort {
    int64_t heads;       // classes of a query that are scored exactly, about
    double most_points;  // that fall during a scan: who needs more draws them later
    double squares;      // of the guess of the mean of X^2
};
constexpr Effort kForNormaliser{128, 2048, 1.15}, kForFunctional{320, 8192, 0.4};  // the guess is too large for a functional
constexpr double kMorePoints = 1.15;     // than are expected to be needed: to draw later takes a scan's time for each
constexpr double kSure = 0.8;            // of the others' mass by some of the tiles
constexpr double kSureOfHeads = 0.5;     // of the heads' but the largest two, which may be alone
constexpr float kMuchLess = 0.95f;       // of a rate: what other threads are told
constexpr int64_t kPilotTiles = 16;      // at the least, and one of so many at the most: where the edge of the heads is learned

// Bets.
constexpr double kFirstPoints = 128;     // of a nucleus
constexpr int64_t kLeastDraws = 16;      // more, before a bet is looked at again
constexpr double kMoreDraws = 0.2;       // of those made, likewise
constexpr double kBeyondWanted = 1.1;    // of the draws that a rule wants
constexpr uint32_t kMostRounds = 64;     // of looking at a bet: a full scan is better then

// The bet on an entropy.
constexpr double kForDecider = 0.95;     // of eps is for T, which decides; the rest is for S, which counts by its square
constexpr double kExpectedSpread = 0.004;  // the mean of X^2 that is expected: errors seldom use more of their radii
constexpr double kFirstShare = 0.7;      // of the draws that this takes by a rule that is seldom too low
constexpr double kBeforeNextLook = 0.12;  // of those made, before the bet is looked at again
constexpr double kMostTaken = 3;         // times the first draws, of those that fell during the scan
constexpr double kEarly = 0.8;           // of the draws that a rule wants: bets are seldom won before
constexpr double kScanAgain = 0.4;       // of those made, where a scan is needed to find them
constexpr double kFloat32Share = 0.05;   // of eps, what rows in float32 may lose; a nat of a logit counts by its surprisal

}  // namespace headlong
