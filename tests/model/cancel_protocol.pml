/*
 * The cancel protocol: which thread may cancel, abort, supersede and end a request, and when, as the code does it.
 *
 * tests/model/test_cancel_protocol.py has spin try every interleaving of it. Each process, and each step that the code
 * takes at once, names the function it stands for. What cannot be seen by two threads is left out: tokens, cells, the
 * wire. Three requests, of which two have one supersede key, compete for two slots; the first never ends by itself.
 * A critical section is one step, since all that it touches is touched under its lock, but for a request's `reason` and
 * `flag`, which others read at any time: these are written one after the other, with the lock held in between.
 *
 * With one of these names defined, one thing is done as it must not be, and spin must find the fault. Three are shapes of
 * other projects' bugs, two are bugs that this project had.
 *
 *   CLEARED_FLAG          a request's flag is lowered when its generation begins (cyllama)
 *   GLOBAL_FLAG           all requests share one flag (ik_llama.cpp, llama_decode_stop)
 *   ENDS_UNOWNED          the cancelling thread ends the request, without having taken it out of the queue (TabbyAPI)
 *   NEWEST_BY_ACCEPTANCE  of two of a key the one accepted last wins, not the one that arrived last (here, until 5a3b2f1)
 *   SUPERSEDES_UNLOCKED   the older of a key is cancelled after the critical section that installs the newer
 *   SEALED_UNLOCKED       a request is sealed outside the registry's critical section (here, until spin found it)
 *   NOT_LET_GO            the flag aborts steps, and the engine thread does not end the request between them
 *   OFFERS_MEMBERS        cancellers may also take over requests that the running step computes
 *   FORGETS_TAKEN         the engine thread does not ask which of the offered requests were taken over
 *
 * With DIES the engine's thread may die, at any statement; then every request must still end once. Broken variants of that:
 *
 *   BURIES_WITHDRAWN      the dying thread also ends the requests that cancellers have taken out of the queue
 *   FORGETS_OWED          it ignores endings that it had written and not delivered
 *
 * With PAUSES readers stop, and their requests pause; the engine's thread sleeps while nothing else is to be computed.
 * Whatever it must know of then has to wake it. Broken variants of that:
 *
 *   CANCELS_QUIETLY       a cancel does not wake it
 *   READS_ON_QUIETLY      a reader that reads on does not
 *   WAKES_TOO_EARLY       it does, and says only then that it reads on
 */

#define N 3      /* requests; 0 and 1 have one supersede key, 2 has none */
#define SLOTS 2
#define POLLS 2  /* graph nodes of a step: AbortGate::poll is asked after each */
#define WORK 2   /* steps until a request ends by itself; request 0 never does */
#define NONE 255
#define QUEUE 254

#define keyed(r) ((r) < 2)
#define endless(r) ((r) == 0)

mtype = { none, explicit, superseded, disconnect, shutdown };  /* CancelReason */
mtype = { stopped, cancelled, failed };                        /* how a request ended */

/* Cancellation, one for each request. `cancel_lock` is the process that is between two writes under its lock. */
byte cancel_lock[N] = NONE;
mtype reason[N] = none;
bool flag[N];                    /* CancelFlag: the atomic that the abort callback reads */
bool sealed[N];
mtype ending[N] = none;

/* Registry. `registry_lock` is its lock while accept cancels an older request. */
bool registry_lock;
bool closed;
bool known[N];                   /* Registry._requests: accepted and not ended */
chan waiting = [N] of { byte };  /* WaitingQueue */
byte newest = NONE;            /* SupersedeKeys, of the one key */
bool held[N];                    /* Registry._holds */
bool withdrawn[N];               /* Registry._withdrawn: taken over by a canceller, and not yet ended */
bool offered[N];                 /* Registry._offered: runs, and the running step does not compute it */

/* Written by the engine thread only, except `left`: the client has hung up (Client.has_left). */
bool runs[N];                    /* EngineLoop._running */
byte done[N];                    /* tokens computed */
bool in_step[N];                 /* AbortGate::members_ */
bool left[N];
byte engine_pid;
bool owed[N];                    /* Outbox._owed, of the engine's thread: an ending that is written and not yet delivered */
bool dies;                       /* an exception leaves EngineLoop.turn, at any statement */

#ifdef PAUSES
bool unread[N];                  /* LoopSink.full: written by the reader's event loop */
bool paused[N];                  /* Request.paused: written by the engine's thread */
bool news;                       /* Registry._news */
#define tell_news() news = true
#define computes(r) (runs[r] && !paused[r])
#define n_busy (computes(0) + computes(1) + computes(2))
#else
#define tell_news() skip
#define computes(r) runs[r]
#define n_busy n_run
#endif

/* Ghost variables, which the code does not have. */
byte arrival[N];
byte arrivals;
bool accepted[N];
bool wanted[N];                  /* some process has cancelled this request */
byte owner[N] = NONE;          /* the process that may end it */
byte n_endings[N];

#ifdef GLOBAL_FLAG
#define raised(r) flag[0]
#define requested(r) flag[0]
#else
#define raised(r) flag[r]
#ifdef CLEARED_FLAG
#define requested(r) flag[r]
#else
#define requested(r) (reason[r] != none)  /* Cancellation.requested */
#endif
#endif

#ifdef SEALED_UNLOCKED
#define live(r) (known[r] && reason[r] == none)
#else
#define live(r) (known[r] && reason[r] == none && !sealed[r])
#endif

/* At most one request lives under a supersede key, whenever the registry's lock is free. */
inline unlock_registry() { assert(!(live(0) && live(1))); registry_lock = false }

/* Cancellation.request: the reason before the flag, so that a thread that sees the flag finds a reason. */
inline request_cancel(r, why, said)
{
	atomic {
		cancel_lock[r] == NONE;
		if
		:: sealed[r] || reason[r] != none -> said = false
		:: else -> reason[r] = why; cancel_lock[r] = _pid; said = true
		fi
	};
	if
	:: said ->
#ifdef GLOBAL_FLAG
		atomic { flag[0] = true; cancel_lock[r] = NONE }
#else
		atomic { flag[r] = true; cancel_lock[r] = NONE }
#endif
	:: else
	fi
}

/* SupersedeKeys.remove */
inline forget_key(r)
{
	if
	:: newest == r -> newest = NONE
	:: else
	fi
}

/* Registry.seal. The caller is responsible for the request. */
inline seal(r, how)
{
	atomic {
		!registry_lock && cancel_lock[r] == NONE;
		assert(owner[r] == _pid);
		assert(!sealed[r]);                      /* Cancellation.seal: a request cannot end twice */
		sealed[r] = true;
		if
		:: requested(r) -> ending[r] = cancelled
		:: else -> ending[r] = how
		fi;
#ifndef SEALED_UNLOCKED
		forget_key(r);
#endif
		unlock_registry()
	}
}

/* Request.ended.set_result, by Outbox.pay */
inline tell(r)
{
	d_step {
		owed[r] = false;
		n_endings[r]++;
		assert(n_endings[r] == 1);
		assert(!in_step[r]);                                /* nothing is computed for it any more */
		assert(ending[r] != cancelled || wanted[r]);        /* no cancel leaks */
		assert(reason[r] == none || ending[r] == cancelled) /* no cancel is lost */
	}
}

/* Endings._write: owe, forget, tell */
inline write_ending(r)
{
#ifdef DIES
	owed[r] = (_pid == engine_pid);                  /* Outbox.owe */
#endif
	atomic {
		!registry_lock;                          /* Registry.forget */
#ifdef SEALED_UNLOCKED
		forget_key(r);
#endif
		known[r] = false;
		withdrawn[r] = false;
		tell_news();
		unlock_registry()
	};
	tell(r)
}

/* Endings.conclude */
inline conclude(r, how)
{
	seal(r, how);
	write_ending(r)
}

/* Registry._withdraw, under the registry's lock: the thread that takes it out is responsible. */
inline withdraw(r, said)
{
	if
	:: waiting ?? [eval(r)] -> waiting ?? eval(r); owner[r] = _pid; withdrawn[r] = true; said = true
	:: !(waiting ?? [eval(r)]) && offered[r] -> offered[r] = false; owner[r] = _pid; withdrawn[r] = true; said = true
	:: else -> said = false
	fi
}

/* Engine.cancel, by any thread */
inline cancel(r, why, said)
{
	request_cancel(r, why, said);
	if
	:: said ->
		atomic { !registry_lock; withdraw(r, said) };
#ifdef ENDS_UNOWNED
		said = true;
#endif
		if
		:: said -> conclude(r, stopped)  /* Endings.conclude_withdrawn */
#if defined(PAUSES) && !defined(CANCELS_QUIETLY)
		:: else -> atomic { !registry_lock; tell_news() }   /* Registry.wake */
#else
		:: else
#endif
		fi
	:: else
	fi
}

/* Engine.accept and Registry.accept; what comes before, from the arrival on, is in preparation.pml. */
proctype submit(byte r)
{
	byte older = NONE, newer = NONE;
	bool said, mine, theirs;

	d_step { arrival[r] = arrivals; arrivals++ };  /* request_context.arrival_of: before all work on it */
	atomic {
		!registry_lock;
		if
		:: closed -> goto refused                /* Registry._check_open */
		:: else
		fi;
		if                                       /* SupersedeKeys.install */
		:: !keyed(r)
#ifndef NEWEST_BY_ACCEPTANCE
		:: keyed(r) && newest != NONE && arrival[newest] > arrival[r] -> older = r; newer = newest
		:: keyed(r) && (newest == NONE || arrival[newest] < arrival[r]) ->
#else
		:: keyed(r) ->
#endif
			older = newest; newer = r; newest = r
		fi;
		registry_lock = true;
		known[r] = true;
		accepted[r] = true;
		owner[r] = QUEUE;
		waiting ! r;
		tell_news();
#ifdef SUPERSEDES_UNLOCKED
		unlock_registry()
#endif
	};
	if
	:: older != NONE ->
		assert(arrival[older] < arrival[newer]); /* no request is superseded by one that arrived before it */
		wanted[older] = true;
		request_cancel(older, superseded, theirs)
	:: else
	fi;
	if
	:: held[r] -> request_cancel(r, explicit, said) /* Holds.reach */
	:: else
	fi;
	atomic {
		if
		:: theirs -> withdraw(older, theirs)
		:: else
		fi;
		if
		:: held[r] -> held[r] = false;
			if
			:: theirs && older == r
			:: else -> withdraw(r, mine)
			fi
		:: else
		fi;
		unlock_registry()
	};
	if
	:: theirs -> conclude(older, stopped)            /* Endings.conclude_withdrawn */
	:: else
	fi;
	if
	:: mine -> conclude(r, stopped)
	:: else
	fi;
refused:
	skip
}

/* POST /v1/requests/{id}/cancel?hold=, which may come before the request: routes_requests.cancel_request, Registry.find. */
proctype cancel_by_id(byte r)
{
	bool said;

	atomic {
		!registry_lock;
		wanted[r] = true;
		if
		:: known[r] -> said = true
		:: !known[r] && !accepted[r] -> held[r] = true   /* Holds.hold_request */
		:: !known[r] && accepted[r]                      /* request_answers.ended_answer */
		fi
	};
	if
	:: said -> cancel(r, explicit, said)
	:: else
	fi
}

/* A client that leaves. The engine's thread may see it first, by asking the socket (native/platform/hang_up.cpp), or the event
 * loop, in which generate.EngineResponse cancels; it exists once the request is accepted. */
proctype leave(byte r)
{
	bool said;

	d_step { left[r] = true; wanted[r] = true };
	if
	:: accepted[r] -> cancel(r, disconnect, said)
	:: closed
	fi
}

#ifdef PAUSES
/* A reader that leaves too much unread, and may read on: LoopSink.put and get */
proctype reader(byte r)
{
	unread[r] = true;
	if
#ifdef WAKES_TOO_EARLY
	:: atomic { !registry_lock; tell_news() }; unread[r] = false
#else
	:: unread[r] = false;
#ifndef READS_ON_QUIETLY
		atomic { !registry_lock; tell_news() }   /* Registry.wake */
#endif
#endif
#ifndef READS
	:: true
#endif
	fi
}
#endif

/* Engine.close without a drain: Registry.close, Registry.requests, Endings.shut_down, Endings.cancel */
proctype close_engine()
{
	byte i;
	bool said;
	bool found[N];

	atomic { !registry_lock; closed = true };
	d_step { !registry_lock; for (i : 0 .. N - 1) { found[i] = known[i]; wanted[i] = wanted[i] || known[i] } i = 0 };
	do
	:: i < N && found[i] -> cancel(i, shutdown, said); i++
	:: i < N && !found[i] -> i++
	:: i == N -> break
	od
}

/* EngineLoop.bury, in the engine's thread, which has died wherever it was; `with` has released its locks. */
inline bury()
{
	d_step {
		i = 0;
		do
		:: i < N ->
			runs[i] = false;
			in_step[i] = false;
			if
			:: cancel_lock[i] == _pid -> cancel_lock[i] = NONE
			:: else
			fi;
			i++
		:: else -> break
		od;
		i = 0
	};
#ifndef FORGETS_OWED
	do                                               /* Outbox.flush */
	:: i < N && owed[i] -> tell(i); i++
	:: i < N && !owed[i] -> i++
	:: i == N -> i = 0; break
	od;
#endif
	atomic {
		!registry_lock;                          /* Registry.take_all */
		closed = true;
		do
		:: i < N ->
			offered[i] = false;
			if
#ifndef BURIES_WITHDRAWN
			:: known[i] && !withdrawn[i] ->
#else
			:: known[i] ->
#endif
				taken[i] = true;
				assert(owner[i] == QUEUE || owner[i] == _pid);
				owner[i] = _pid;
				if
				:: waiting ?? [eval(i)] -> waiting ?? eval(i)
				:: else
				fi
			:: else
			fi;
			i++
		:: else -> break
		od;
		i = 0
	};
	do
	:: i < N && taken[i] ->
		if                                       /* Endings.bury */
		:: !sealed[i] -> seal(i, failed)
		:: else
		fi;
		if
		:: n_endings[i] == 0 -> write_ending(i)
		:: else
		fi;
		i++
	:: i < N && !taken[i] -> i++
	:: i == N -> break
	od
}

/* A defect, or no memory: at any moment, or never. */
proctype defect()
{
	if
	:: dies = true
	:: true
	fi
}

/* The engine's thread: EngineLoop.run and turn */
proctype engine()
{
	byte i, n_run, n_members, n_raised, poll;
	bool said, aborted, some;
	bool taken[N];

	engine_pid = _pid;
#ifdef DIES
	{
#endif
turn:
	/* EngineLoop._end_cancelled, Watcher.look and EngineLoop._end: the slot first, then the ending */
	do
	:: atomic { i < N && runs[i] && left[i] && reason[i] == none -> skip }; request_cancel(i, disconnect, said)
#ifndef NOT_LET_GO
	:: atomic { i < N && runs[i] && requested(i) -> runs[i] = false; n_run-- }; conclude(i, stopped); i++
	:: atomic { i < N && (!runs[i] || !requested(i)) -> i++ }
#else
	:: i < N && !(runs[i] && left[i] && reason[i] == none) -> i++
#endif
	:: i == N -> i = 0; break
	od;
#ifdef PAUSES
	/* Generation.pause_unread */
	do
	:: atomic { i < N -> paused[i] = runs[i] && unread[i]; i++ }
	:: atomic { i == N -> i = 0; break }
	od;
#endif
	/* EngineLoop._admit: Registry.take_next, then Watcher.look */
	do
	:: atomic { !registry_lock && len(waiting) > 0 && n_busy < SLOTS -> waiting ? i; owner[i] = _pid };
		if
		:: requested(i) -> conclude(i, stopped)
		:: else -> d_step { runs[i] = true; n_run++ }
#ifdef CLEARED_FLAG
			flag[i] = false
#endif
		fi
	:: atomic { !registry_lock && (empty(waiting) || n_busy >= SLOTS) -> i = 0; break }
	od;
	if
	:: n_busy == 0 -> goto idle
	:: else
	fi;
	/* Scheduler.plan: all who decode, or a prompt alone; Context::step, AbortGate::arm */
	atomic {  /* not d_step, which would always take the first */
		if
		:: true -> for (i : 0 .. N - 1) { in_step[i] = computes(i) }; n_members = n_busy
		:: computes(0) -> in_step[0] = true; n_members = 1
		:: computes(1) -> in_step[1] = true; n_members = 1
		:: computes(2) -> in_step[2] = true; n_members = 1
		fi;
		i = 0
	};
#ifndef NOT_LET_GO
	/* EngineLoop._cancelled: who left while the step was planned */
	do
	:: atomic { i < N && runs[i] && requested(i) -> some = true; i++ }
	:: atomic { i < N && !(runs[i] && requested(i)) -> i++ }
	:: atomic { i == N -> i = 0; break }
	od;
	if
	:: atomic { some -> some = false; in_step[0] = false; in_step[1] = false; in_step[2] = false; n_members = 0 };
		goto turn
	:: else
	fi;
#endif
	assert(!(in_step[0] && n_endings[0] || in_step[1] && n_endings[1] || in_step[2] && n_endings[2]));
	/* EngineLoop._rest_may_end, Registry.offer */
	atomic {
		!registry_lock;
		do
		:: i < N ->
#ifndef OFFERS_MEMBERS
			offered[i] = runs[i] && !in_step[i] && !requested(i);
#else
			offered[i] = runs[i];
#endif
			i++
		:: else -> i = 0; break
		od
	};
	/* Those that are cancelled by then are not offered, and end here. */
	do
	:: atomic { i < N && runs[i] && !in_step[i] && !offered[i] && owner[i] == _pid -> skip }; conclude(i, stopped); i++
	:: atomic { i < N && !(runs[i] && !in_step[i] && !offered[i] && owner[i] == _pid) -> i++ }
	:: atomic { i == N -> i = 0; break }
	od;
	do
	:: poll < POLLS && !aborted ->
		/* AbortGate::poll and decide: the flags are read one after the other, while others raise them */
		do
		:: atomic { i < N && in_step[i] -> n_raised = n_raised + raised(i); i++ }
		:: atomic { i < N && !in_step[i] -> i++ }
		:: atomic { i == N -> i = 0; break }
		od;
		atomic {
			if
			:: n_raised > 0 -> aborted = true    /* all members are cancelled, or worth_aborting says so */
			:: n_raised < n_members              /* or it does not */
			fi;
			n_raised = 0; poll++
		}
	:: else -> atomic { poll = 0; break }
	od;
	/* Registry.take_back. The slots of those that were taken over are given back by EngineLoop._end_cancelled. */
	atomic {
		!registry_lock;
		do
		:: i < N ->
			if
#ifndef FORGETS_TAKEN
			:: runs[i] && !in_step[i] && !offered[i] -> runs[i] = false; n_run--
#endif
			:: else
			fi;
			offered[i] = false;
			i++
		:: else -> i = 0; break
		od
	};
	/* AbortGate::disarm; then Context::commit and Generation.take, or Sequences::roll_back and Scheduler.resync */
	do
	:: atomic { i < N && in_step[i] ->
			in_step[i] = false;
			if
			:: !aborted && !endless(i) && !raised(i) -> done[i]++
			:: else
			fi
		};
		if
		:: done[i] == WORK -> atomic { runs[i] = false; n_run--; }; conclude(i, stopped)  /* Generation._finish_choice, EngineLoop._finish */
		:: else
		fi;
		i++
	:: atomic { i < N && !in_step[i] -> i++ }
	:: atomic { i == N -> i = 0; n_members = 0; aborted = false; break }
	od;
	goto turn;
idle:
	/* Registry.wait_for_work */
	if
#ifdef PAUSES
	:: atomic { !registry_lock && news && (!closed || len(waiting) > 0 || n_run > 0) -> news = false }; goto turn
	:: !registry_lock && closed && len(waiting) == 0 && n_run == 0
#else
	:: !registry_lock && len(waiting) > 0 -> goto turn
	:: !registry_lock && empty(waiting) && closed
#endif
	fi
#ifdef DIES
	} unless { dies; bury() }
#endif
}

/* The sets of processes that are checked. */
init {
	atomic {
		run engine();
#ifdef READS
		run submit(2);
		run reader(2)
	};
	timeout;
	assert(n_endings[2] == 1);  /* it ends by itself, with nobody to cancel it */
	closed = true
#else
		run submit(0);
#ifdef PAUSES
		run reader(0);
#endif
#if defined(KEYED) || defined(ALL)
		run submit(1);
#endif
#if defined(APART) || defined(ALL)
		run submit(2);
		run leave(2);
#endif
		run cancel_by_id(0);
		run close_engine();
#ifdef DIES
		run defect()
#endif
	};
	timeout;  /* all have ended, or wait for each other */
	assert(accepted[0] <= n_endings[0] && accepted[1] <= n_endings[1] && accepted[2] <= n_endings[2])
#endif
}

#define ends(r) (accepted[r] -> <> (n_endings[r] == 1))

/* Every accepted request ends: the endless one too, since it is cancelled. */
ltl every_accepted_request_ends { [] (ends(0) && ends(1) && ends(2)) }
