// Local ids of the nodes of a sample, in the order in which they were found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace halfgnn::cpu {

// A hash table with open addressing. A node of one tree is another node than that of another tree; without trees all
// nodes are of tree 0. A slot has part of the node's key and its local id, so that most look-ups read one line.
template <class I>
class NodeTable {
 public:
  explicit NodeTable(bool has_trees) : has_trees_(has_trees) {}

  int64_t size() const { return static_cast<int64_t>(nodes_.size()); }
  const std::vector<I>& nodes() const { return nodes_; }
  int32_t tree(int64_t local) const { return has_trees_ ? trees_[static_cast<size_t>(local)] : 0; }
  const std::vector<int32_t>& trees() const { return trees_; }

  // Room for so many more nodes.
  void reserve(int64_t more) {
    const size_t wanted = nodes_.size() + static_cast<size_t>(more);
    if (wanted * 2 <= slots_.size()) return;
    size_t size = 1024;
    while (size < wanted * 2) size *= 2;
    shift_ = 64;
    for (size_t rest = size; rest > 1; rest /= 2) --shift_;
    slots_.assign(size, kFree);
    for (size_t local = 0; local < nodes_.size(); ++local) {
      uint64_t* slot = find(nodes_[local], tree(static_cast<int64_t>(local)));
      if (*slot == kFree) *slot = slot_of(nodes_[local], local);  // not again for a seed that comes twice
    }
  }

  void prefetch(I node, int32_t tree) const { __builtin_prefetch(&slots_[home_of(node, tree)], 1); }

  // The node's local id, after it has been added if it is new.
  int32_t local_id(I node, int32_t tree) {
    uint64_t* slot = find(node, tree);
    if (*slot == kFree) {
      *slot = slot_of(node, nodes_.size());
      append(node, tree);
    }
    return static_cast<int32_t>(*slot & kLocal);
  }

  // Adds a node even if it is there. Look-ups find the first of equal nodes. Returns whether it is new.
  bool add(I node, int32_t tree) {
    uint64_t* slot = find(node, tree);
    const bool is_new = *slot == kFree;
    if (is_new) *slot = slot_of(node, nodes_.size());
    append(node, tree);
    return is_new;
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  static constexpr uint64_t kLocal = 0x7fffffff;

  // Low words of ids tell most nodes apart.
  static uint64_t slot_of(I node, size_t local) {
    return static_cast<uint64_t>(node) << 32 | static_cast<uint64_t>(local);
  }
  size_t home_of(I node, int32_t tree) const {
    const uint64_t key = static_cast<uint64_t>(node) ^ static_cast<uint64_t>(tree) * 0xd6e8feb86659fd93u;
    return static_cast<size_t>((key ^ key >> 32) * 0x9e3779b97f4a7c15u >> shift_);
  }
  bool is_at(uint64_t slot, I node, int32_t tree) const {
    if (slot >> 32 != (static_cast<uint64_t>(node) & 0xffffffffu)) return false;
    if (sizeof(I) == 4 && !has_trees_) return true;
    const auto local = static_cast<size_t>(slot & kLocal);
    return nodes_[local] == node && (!has_trees_ || trees_[local] == tree);
  }
  uint64_t* find(I node, int32_t tree) {
    for (size_t i = home_of(node, tree);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i] == kFree || is_at(slots_[i], node, tree)) return &slots_[i];
    }
  }
  void append(I node, int32_t tree) {
    nodes_.push_back(node);
    if (has_trees_) trees_.push_back(tree);
  }

  bool has_trees_;
  int shift_ = 64;
  std::vector<uint64_t> slots_;
  std::vector<I> nodes_;
  std::vector<int32_t> trees_;
};

}  // namespace halfgnn::cpu
