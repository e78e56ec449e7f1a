// Calls in the OpenMP team of the process, whose runtime is linked here (GNU's; or what LD_PRELOAD puts in its place), and which of
// two ways is taken as they get faster and slower.
#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/host_team.h"
#include "runtime/pool.h"

int headlong::processors() { return 4; }  // whatever this machine has

namespace {

void expect(bool holds, const char* what) {
    if (holds) return;
    std::printf("not so: %s\n", what);
    std::exit(1);
}

// A call of n pieces, each of which has to run once; whether the team ran it.
bool in_team(int n) {
    const int64_t before = headlong::team_rounds();
    std::vector<std::atomic<int>> ran(n);
    headlong::run_parallel(n, [&](int piece) { ++ran[piece]; });
    for (const auto& times : ran) expect(times == 1, "each piece runs once");
    return headlong::team_rounds() > before;
}

void every_caller() {
    headlong::tell_way(1);
    for (int team : {2, 3, 1, 4}) {
        omp_set_num_threads(team);
        for (int n : {2, 3, 4, 9}) expect(in_team(n) == (team >= std::min(n, 4)), "the team runs what it has threads for");
        expect(omp_get_max_threads() == team, "the host's number of threads stays");
    }
    omp_set_num_threads(2);
    std::atomic<int> inner{0}, at_once{0}, most{0};
    headlong::run_parallel(4, [&](int) { headlong::run_parallel(3, [&](int) { ++inner; }); });
    expect(inner == 12, "calls inside a piece");
    omp_set_num_threads(4);
    headlong::run_parallel(2, [&](int) {
        const int now = ++at_once;
        for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {}
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        --at_once;
    });
    expect(most <= 2, "no more of a larger team take part than were asked for");
#if !defined(__SANITIZE_THREAD__)  // it cannot see how a runtime's own regions begin and end
    inner = 0;
#pragma omp parallel num_threads(3)
    headlong::run_parallel(5, [&](int) { ++inner; });
    expect(inner == 15, "calls inside someone's parallel region");
#endif
    try {
        headlong::run_parallel(4, [](int piece) {
            if (piece == 2) throw std::runtime_error("as it came");
        });
        expect(false, "a piece's exception reaches the caller");
    } catch (const std::runtime_error& error) {
        expect(std::string(error.what()) == "as it came", "the exception is the piece's");
    }
    expect(in_team(4), "the team goes on after an exception");
    std::thread([] { expect(!in_team(4), "other threads of Python make no team of their own"); }).join();
#if !defined(__SANITIZE_THREAD__)  // nor does it know a forked child
    const pid_t child = fork();
    if (child == 0) {
        expect(!in_team(4), "a forked child has threads of its own");
        _exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a forked child answers");
#endif
    headlong::tell_way(0);
    expect(!in_team(4), "our own threads alone");
}

bool taken = false;

bool are_taken(int) { return taken; }

// Rounds of 100 us of work for a while of `ms`, each way so many times faster than one thread; the share of time with the team.
double share(headlong::Ways& ways, double own, double team, double ms) {
    const double speeds[2] = {own, team};
    double all = 0, with = 0;
    while (all < 1e6 * ms) {
        const int way = ways.way();
        const bool measured = ways.measures();
        const double took = 100'000 / speeds[way];
        ways.add(static_cast<int64_t>(took), measured ? 100'000 : -1, 1);
        all += took;
        if (way == 1) with += took;
    }
    return with / all;
}

void the_faster_way() {
    for (int first : {0, 1}) {
        headlong::Ways ways(first, are_taken);
        expect(share(ways, 1.3, 1.9, 500) > 0.9, "a faster team is found");
        expect(share(ways, 1.8, 1.6, 2000) < 0.1, "a team that has become slower is left");
        expect(share(ways, 1.0, 0.005, 20'000) < 0.05, "a team that waits for processors costs a twentieth of the time");
        share(ways, 1.3, 1.9, 20'000);
        expect(share(ways, 1.3, 1.9, 1000) > 0.9, "a team that is fast again is found again");
        expect(share(ways, 1.0, 0.005, 2'000) < 0.2, "and left within a few rounds");
        taken = true;
        expect(share(ways, 0.5, 0.005, 20'000) == 0, "a machine that is busy is spared trials");
        expect(share(ways, 0.5, 1.9, 100) == 0, "of whatever was faster before");
        taken = false;
        expect(share(ways, 1.3, 1.9, 1000) > 0.9, "and the team is found when others have left");
        taken = true;
        expect(share(ways, 0.5, 0.005, 200) < 0.4, "and left after a few rounds that were held up where others wait for processors");
        expect(share(ways, 0.5, 1.9, 100) == 0, "for as long as they do");
        taken = false;
    }
}

void situations() {
    headlong::Situations now;
    headlong::Ways& between = now.at(1'000'000'000);
    now.end(1'000'500'000);
    expect(&now.at(1'000'510'000) == &between, "rounds of a call are chosen for alike");
    now.end(1'030'000'000);
    headlong::Ways& loop = now.at(1'030'010'000);
    expect(&loop != &between, "a loop of calls is another case than calls between other work");
    expect(loop.way() == 0, "and begins with our own threads");
    now.end(1'030'500'000);
    expect(&now.at(1'031'000'000) == &between, "which comes back after a gap");
}

}  // namespace

int main() {
    every_caller();
    the_faster_way();
    situations();
    std::puts("as expected");
}
