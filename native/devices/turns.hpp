#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace pyllmcancel {

// The machine's turns: a step of the model and a part of an encoder's graph never compute at the same time, since each of
// them wants all compute threads. When both wait, they take turns, so neither waits for more than one turn of the other.
class Turns {
  public:
    enum class Kind { step, part };

    // While one lives, it is that kind's turn.
    class Turn {
      public:
        Turn(Turns & turns, Kind kind) : turns_(turns), kind_(kind) { turns_.begin(kind); }
        ~Turn() { turns_.end(kind_); }
        Turn(const Turn &) = delete;
        Turn & operator=(const Turn &) = delete;

        // Lets the other kind have its turn, if it waits and this one has lasted as long as the other's last turn.
        void give_way();

      private:
        Turns & turns_;
        Kind kind_;
    };

    // Returns whether a turn of this kind waits.
    bool waits(Kind kind);

  private:
    void begin(Kind kind);
    void end(Kind kind);
    bool is_over(Kind kind);

    std::mutex mutex_;
    std::condition_variable changed_;
    bool taken_ = false;
    Kind last_ = Kind::part;
    int n_waiting_[2] = {0, 0};
    int64_t began_us_ = 0;
    int64_t step_us_ = 0; // of the last step
};

} // namespace pyllmcancel
