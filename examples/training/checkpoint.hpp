#pragma once

#include "learner.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>

// A file with all that a learner knows: a header, then the weights and the two means of the
// optimiser, as they are in memory. A learner that goes on from it learns the same to the bit.

namespace training {

/// FNV-1a, 64 bits.
inline std::uint64_t checksum(const void* data, std::size_t bytes,
                              std::uint64_t so_far = 0xCBF29CE484222325u) {
  const unsigned char* byte = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) so_far = (so_far ^ byte[i]) * 0x100000001B3u;
  return so_far;
}

struct checkpoint_header {
  char magic[8] = {'h', 'e', 'e', 'd', 't', 'r', 'n', '\n'};
  std::uint32_t version = 1, scalar_bytes = 0;
  std::int64_t vocabulary = 0, layers = 0, heads = 0, head_dim = 0, steps = 0;
  std::uint64_t task = 0;   // what was learned, by its checksum
  std::uint64_t check = 0;  // of the numbers after the header, and of the header without this
};

template <typename Scalar>
checkpoint_header header_of(const learner<Scalar>& l, std::uint64_t task) {
  const model_size& size = l.model.size();
  checkpoint_header h;
  h.scalar_bytes = sizeof(Scalar);
  h.vocabulary = size.vocabulary, h.layers = size.layers, h.heads = size.heads;
  h.head_dim = size.head_dim, h.steps = l.optimiser.steps;
  h.task = task;
  std::uint64_t sum = checksum(&h, offsetof(checkpoint_header, check));
  for (const vector<Scalar>* part : {&l.model.weights.all, &l.optimiser.mean, &l.optimiser.square})
    sum = checksum(part->data(), std::size_t(part->size()) * sizeof(Scalar), sum);
  h.check = sum;
  return h;
}

/// Writes beside the file and renames, so that there is always a whole one.
template <typename Scalar>
void save(const learner<Scalar>& l, std::uint64_t task, const std::string& path) {
  const std::string beside = path + ".part";
  std::ofstream file(beside, std::ios::binary);
  const checkpoint_header h = header_of(l, task);
  file.write(reinterpret_cast<const char*>(&h), sizeof h);
  for (const vector<Scalar>* part : {&l.model.weights.all, &l.optimiser.mean, &l.optimiser.square})
    file.write(reinterpret_cast<const char*>(part->data()),
               std::streamsize(part->size()) * std::streamsize(sizeof(Scalar)));
  file.close();
  if (!file || std::rename(beside.c_str(), path.c_str()) != 0)
    throw std::runtime_error("cannot write the checkpoint '" + path + "'");
}

/// Fills a learner of the same sizes, for the same task, with what the file holds; one that throws
/// may have been changed.
template <typename Scalar>
void load(learner<Scalar>& l, std::uint64_t task, const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw std::runtime_error("the checkpoint '" + path + "' " + why);
  };
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read the checkpoint '" + path + "'");
  checkpoint_header h;
  const checkpoint_header expected = header_of(l, task);
  file.read(reinterpret_cast<char*>(&h), sizeof h);
  if (!file || std::memcmp(h.magic, expected.magic, sizeof h.magic) != 0)
    refuse("is no checkpoint of this program");
  if (h.version != expected.version)
    refuse("is of version " + std::to_string(h.version) + ", and this program reads version " +
           std::to_string(expected.version));
  if (h.task != task) refuse("has learned something else: another text, or another --seed");
  if (h.scalar_bytes != expected.scalar_bytes || h.vocabulary != expected.vocabulary ||
      h.layers != expected.layers || h.heads != expected.heads || h.head_dim != expected.head_dim)
    refuse("holds a model of another size");

  for (vector<Scalar>* part : {&l.model.weights.all, &l.optimiser.mean, &l.optimiser.square})
    file.read(reinterpret_cast<char*>(part->data()),
              std::streamsize(part->size()) * std::streamsize(sizeof(Scalar)));
  if (!file || file.peek() != std::ifstream::traits_type::eof())
    refuse("has another length than its header says");
  l.optimiser.steps = size_type(h.steps);
  if (header_of(l, task).check != h.check) refuse("is damaged: its checksum is wrong");
}

}  // namespace training
