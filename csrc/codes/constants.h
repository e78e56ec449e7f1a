// The numbers of codes' readers that were chosen by trying, in one table; those that a proof gives stand beside it.
//
// Where each was chosen was not written down; all were checked on SmolLM2's head (49,152 x 576, codes of calibrated segments, 96 hidden vectors),
// in a build that multiplies them by variables of the environment. Behind each are the rows that a query scores there with ten per cent
// less | more of it: N 187.7 as it is for a normaliser, H 546.6 for an entropy, D 308.5 for a draw by mass with its normaliser. "flat": none
// moves by a row; what such a number saves is time, memory or a second scan.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headlong {

// Ids and draws.
constexpr float kNarrow = 0.5f;      // of radii that may fail: how far below its estimate a class is expected to be at worst; flat
constexpr size_t kRowsAtOnce = 256;  // scored at once: threads that share fewer wait longer for each other than for the rows; flat
constexpr int kMostRedrawn = 16;     // draws of one that may be beyond a nucleus: each halves what is left to draw from, about; flat
constexpr int64_t kHeldBytes = int64_t{1} << 25;  // by queries that are answered at once, about; an interrupt waits while they are prepared

// What a scan gathers for a normaliser, and for a functional of the distribution.
struct Effort {
    int64_t heads;       // classes of a query that are scored exactly, about; N 178.4 | 187.7, D 304.2 | 308.5; H 525.9 | 564.5
    double most_points;  // that fall during a scan: who needs more draws them later; flat
    double squares;      // of the guess of the mean of X^2, which is too large for a functional; N 186.0 | 189.2; H flat
};
constexpr Effort kForNormaliser{128, 2048, 1.15}, kForFunctional{320, 8192, 0.4};
constexpr double kMorePoints = 1.15;  // than are expected to be needed: to draw later takes a scan's time each; N 182.3 | 192.9, H 550.3 | 548.7
constexpr double kSure = 0.8;         // of the others' mass by some of the tiles; flat
constexpr double kSureOfHeads = 0.5;  // of the heads' but the largest two, which may be alone; flat
constexpr float kMuchLess = 0.95f;    // of a rate: what other threads are told; flat
constexpr int64_t kPilotTiles = 16;   // at the least, and one of so many at the most: where the edge of the heads is learned; N 181.1 | 171.4, H 524.0 | 525.0

// Bets.
constexpr double kFirstPoints = 128;   // of a nucleus; D 308.5 | 309.9
constexpr int64_t kLeastDraws = 16;    // more, before a bet is looked at again; flat
constexpr double kMoreDraws = 0.2;     // of those made, likewise; flat
constexpr double kBeyondWanted = 1.1;  // of the draws that a rule wants; flat
constexpr uint32_t kMostRounds = 64;   // of looking at a bet: a full scan is better then

// The bet on an entropy.
constexpr double kForDecider = 0.95;        // of eps is for T, which decides; the rest is for S, which counts by its square; H 583.4 | more than all
constexpr double kExpectedSpread = 0.004;   // the mean of X^2 that is expected: errors seldom use more of their radii; flat
constexpr double kFirstShare = 0.7;         // of the draws that this takes by a rule that is seldom too low; H 546.3 | 542.9
constexpr double kBeforeNextLook = 0.12;    // of those made, before the bet is looked at again; H 545.4 | 548.3
constexpr double kMostTaken = 3;            // times the first draws, of those that fell during the scan; flat
constexpr double kEarly = 0.8;              // of the draws that a rule wants: bets are seldom won before; H 540.9 | 562.9
constexpr double kScanAgain = 0.4;          // of those made, where a scan is needed to find them; flat

}  // namespace headlong
