// How a call is cut into pieces of work, for native/ggml/attention.cpp alone. No row's arithmetic depends on it.
#pragma once

#include "ggml.h"
#include "ggml/attention_tiles.hpp"

#include <algorithm>
#include <cstdint>

namespace {

constexpr int64_t MAX_ROWS = 48; // at once; a multiple of the rows that the multiplication takes at once
constexpr int64_t UNITS_PER_THREAD = 4; // that even out what other programs take of a core

struct Shape {
    int64_t dk; // elements of a query and of a key
    int64_t dv; // elements of a value
    int64_t n_queries;
    int64_t n_heads;
    int64_t n_key_heads;
    int64_t n_streams;
    int64_t n_blocks;

    explicit Shape(const ggml_tensor & dst)
        : dk(dst.src[1]->ne[0]), dv(dst.src[2]->ne[0]), n_queries(dst.src[0]->ne[1]), n_heads(dst.src[0]->ne[2]),
          n_key_heads(dst.src[1]->ne[2]), n_streams(dst.src[0]->ne[3]),
          n_blocks((dst.src[1]->ne[1] + BLOCK - 1) / BLOCK) {}

    int64_t heads_per_key() const { return n_heads / n_key_heads; }
};

// Rows of queries, and of the heads that share a key's head, of one stream.
struct Item {
    int64_t stream;
    int64_t key_head;
    int64_t first_head; // of all
    int64_t n_heads;
    int64_t first_query;
    int64_t n_queries;

    int64_t n_rows() const { return n_heads * n_queries; }
    int64_t head_of(int64_t row) const { return first_head + row / n_queries; }
    int64_t query_of(int64_t row) const { return first_query + row % n_queries; }
};

class Division {
  public:
    // `room` is how many numbers fit into the work buffer.
    Division(const Shape & shape, int64_t room, int64_t n_threads) : shape_(shape) {
        int64_t rows = MAX_ROWS;
        while (rows > 1 && Scratch::size(rows, shape.dk, shape.dv) > room / n_threads) {
            rows = rows > 6 ? rows - 6 : 1;
        }
        heads_at_once_ = std::min(shape.heads_per_key(), rows);
        queries_at_once_ = std::min(rows / heads_at_once_, shape.n_queries);
        while (queries_at_once_ > 1 && n_items() < UNITS_PER_THREAD * n_threads) {
            queries_at_once_ = (queries_at_once_ + 1) / 2;
        }
        const int64_t n_partials = shape.n_queries * shape.n_heads * shape.n_streams * shape.n_blocks;
        apart_ = shape.n_blocks > 1 && n_items() < UNITS_PER_THREAD * n_threads &&
                 n_threads * scratch_size() + n_partials * (SUMS + shape.dv) <= room;
        while (!apart_ && heads_at_once_ > 1 && n_items() < n_threads) {
            heads_at_once_ = (heads_at_once_ + 1) / 2;
        }
    }

    // Blocks are computed apart, and merged afterwards.
    bool apart() const { return apart_; }
    int64_t n_items() const { return shape_.n_streams * shape_.n_key_heads * head_groups() * query_groups(); }
    int64_t most_rows() const { return heads_at_once_ * queries_at_once_; }
    int64_t scratch_size() const { return Scratch::size(most_rows(), shape_.dk, shape_.dv); }

    Item item(int64_t number) const {
        // The last queries of a prompt see the most cells: first, so that no thread ends with them alone.
        const int64_t queries = query_groups() - 1 - number % query_groups();
        number /= query_groups();
        const int64_t heads = number % head_groups() * heads_at_once_; // of the key's head
        number /= head_groups();
        const int64_t key_head = number % shape_.n_key_heads;
        Item found{number / shape_.n_key_heads, key_head, key_head * shape_.heads_per_key() + heads, 0,
                   queries * queries_at_once_,  0};
        found.n_heads = std::min(heads_at_once_, shape_.heads_per_key() - heads);
        found.n_queries = std::min(queries_at_once_, shape_.n_queries - found.first_query);
        return found;
    }

  private:
    int64_t head_groups() const { return (shape_.heads_per_key() + heads_at_once_ - 1) / heads_at_once_; }
    int64_t query_groups() const { return (shape_.n_queries + queries_at_once_ - 1) / queries_at_once_; }

    const Shape & shape_;
    int64_t heads_at_once_ = 1;
    int64_t queries_at_once_ = 1;
    bool apart_ = false;
};

} // namespace
