#include "reader/samples.h"

#include <algorithm>
#include <cmath>

#include "executor/verbs.h"
#include "runtime/shared_work.h"
#include "sampling/largest_key.h"

namespace headlong {
namespace {

constexpr int64_t kPiece = 4096;  // classes whose noise is drawn at once
constexpr double kLucky = 2;       // more of them cost a look each, fewer leave more blocks to the search

// The word of noise from which a class is lucky: a few times sqrt(V) classes are. About as many others are then to be found where all
// are alike.
uint64_t lucky_from(int64_t vocab) {
    const double share = std::min(1.0, std::ceil(kLucky * std::sqrt(static_cast<double>(vocab))) / static_cast<double>(vocab));
    return static_cast<uint64_t>(0x1p32 * (1 - share));
}

// The classes that are lucky in one draw, and that a mask leaves.
void add_lucky(const Executor& e, const SampleRule& rule, uint64_t row, uint32_t draw, uint64_t least, const uint8_t* mask, int threads,
               std::vector<Lucky>& lucky) {
    const int64_t lead = rule.class0 & 3;  // noise() starts at a multiple of four
    std::vector<std::vector<Lucky>> each(threads);
    over_chunks((e.vocab + kPiece - 1) / kPiece, threads, [&](int t, int64_t c) {
        uint32_t words[kPiece + kBlock];
        const int64_t first = c * kPiece, n = std::min(kPiece, e.vocab - first), all = (n + lead + kBlock - 1) / kBlock * kBlock;
        e.kernels->noise(rule.seed, row, draw, first + rule.class0 - lead, all, words);
        int32_t high[kPiece + kBlock];
        const int64_t found = e.kernels->high_words(words, all, static_cast<uint32_t>(least), high);
        for (int64_t i = 0; i < found; ++i) {
            const int64_t id = first + high[i] - lead;
            if (id < first || id >= first + n || (mask != nullptr && mask[id] == 0)) continue;
            each[t].push_back({id, words[high[i]], draw});
        }
    });
    for (const std::vector<Lucky>& some : each) lucky.insert(lucky.end(), some.begin(), some.end());
}

// Query q by the pass over all classes.
Answer by_all(const Executor& e, const double* hidden, int64_t q, SampleRule rule, Question question, std::vector<Draw>* draws) {
    rule.row0 += q;
    if (question.mask_per_row) question.mask += q * e.vocab;
    return sample(e, hidden + q * e.dim, 1, {rule}, question, draws).front();
}

}  // namespace

std::vector<Answer> sample_by_blocks(const Executor& e, const Blocks& b, const double* hidden, int64_t count, const SampleRule& rule,
                                     const Question& question, std::vector<Draw>* draws) {
    know_places(b);
    const uint64_t least = lucky_from(e.vocab);
    std::vector<LargestKey> keys;
    for (int64_t q = 0; q < count; ++q) keys.emplace_back(rule, rule.row0 + q, e.link_a, e.link_b, least);
    const int at_once = static_cast<int>(std::min<int64_t>(count, question.threads));
    Turns<int64_t> next;
    run_parallel(at_once, [&](int) {
        for (int64_t q = next++; q < count; q = next++) {
            const uint8_t* mask = question.mask == nullptr ? nullptr : question.mask + (question.mask_per_row ? q * e.vocab : 0);
            for (int i = 0; i < rule.n; ++i)
                add_lucky(e, rule, rule.row0 + q, static_cast<uint32_t>(i), least, mask, at_once == 1 ? question.threads : 1, keys[q].lucky);
            keys[q].luckiest_first(e.vocab);
        }
    });
    const std::vector<SearchResult> found = search(b, hidden, count, 1, question.mask, question.mask_per_row, question.threads, keys.data());
    const auto drawn = [](const Draw& draw) { return draw.id >= 0 && std::fabs(draw.score) < kInf; };
    std::vector<Answer> answers(count);
    draws->clear();
    for (int64_t q = 0; q < count; ++q) {
        std::vector<Draw> won = keys[q].draws();
        if (!found[q].done || !std::all_of(won.begin(), won.end(), drawn)) {
            answers[q] = by_all(e, hidden, q, rule, question, &won);
            answers[q].best.clear();
        }
        draws->insert(draws->end(), won.begin(), won.end());
        answers[q].rows += found[q].rows;
        answers[q].bytes += found[q].bytes;
    }
    return answers;
}

}  // namespace headlong
