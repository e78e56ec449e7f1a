// Working memory that is not handed back between calls: a fresh page costs more than a query can spare.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

namespace headlong {

// An array of plain numbers, uninitialised, on a cache line's border, from what this thread used before. It may be given
// back by another thread.
template <typename T>
class Scratch {
  public:
    Scratch() = default;
    explicit Scratch(size_t size) { resize(size); }
    Scratch(Scratch&&) = default;
    Scratch& operator=(Scratch&& other) {
        give_back();
        block_ = std::move(other.block_);
        size_ = other.size_;
        other.size_ = 0;
        return *this;
    }
    ~Scratch() { give_back(); }

    // What was in it is lost.
    void resize(size_t size) {
        give_back();
        size_ = size;
        if (size == 0) return;
        Spare& kept = spare();
        size_t found = kMostBlocks;
        for (size_t i = 0; i < kMostBlocks; ++i)
            if (kept[i].size >= size && (found == kMostBlocks || kept[i].size < kept[found].size)) found = i;
        if (found < kMostBlocks) {
            block_ = std::move(kept[found]);
            kept[found] = Block{};
        } else {
            block_ = {std::unique_ptr<T[], Free>(static_cast<T*>(::operator new(size * sizeof(T), std::align_val_t{64}))), size};
        }
    }

    T* data() { return block_.data.get(); }
    const T* data() const { return block_.data.get(); }
    T& operator[](size_t i) { return block_.data[i]; }
    const T& operator[](size_t i) const { return block_.data[i]; }
    size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }

  private:
    struct Free {
        void operator()(T* p) const { ::operator delete(p, std::align_val_t{64}); }
    };
    struct Block {
        std::unique_ptr<T[], Free> data;
        size_t size = 0;
    };
    static constexpr size_t kMostBlocks = 4, kMostBytes = size_t{16} << 20;  // of a thread, each

    // What a thread keeps: a fixed number of places, so that giving back needs no memory and cannot fail.
    using Spare = std::array<Block, kMostBlocks>;

    static Spare& spare() {
        thread_local Spare blocks;
        return blocks;
    }

    void give_back() {
        size_ = 0;
        if (block_.data == nullptr) return;
        if (block_.size * sizeof(T) <= kMostBytes) {
            Spare& kept = spare();
            size_t least = 0;  // an empty place, or the smallest, which is the easiest to get again
            for (size_t i = 1; i < kMostBlocks; ++i)
                if (kept[i].size < kept[least].size) least = i;
            if (kept[least].size < block_.size) kept[least] = std::move(block_);
        }
        block_ = Block{};
    }

    Block block_;
    size_t size_ = 0;
};

}  // namespace headlong
