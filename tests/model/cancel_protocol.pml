/*
 * The cancel protocol: who may cancel, abort, supersede and end a request, as the code does it.
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
 *   ENDS_UNOWNED          whoever cancels ends the request, without having taken it out of the queue (TabbyAPI)
 *   NEWEST_BY_ACCEPTANCE  of two of a key the one accepted last wins, not the one that arrived last (here, until 5a3b2f1)
 *   SUPERSEDES_UNLOCKED   the older of a key is cancelled after the critical section that installs the newer
 *   SEALED_UNLOCKED       a request is sealed outside the registry's critical section (here, until spin found it)
 *   NOT_LET_GO            the flag aborts steps, and nobody takes the request out between them
 */

#define N 3      /* requests; 0 and 1 have one supersede key, 2 has none */
#define SLOTS 2
#define POLLS 2  /* graph nodes of a step: AbortGate::poll is asked after each */
#define WORK 2   /* steps until a request ends by itself; request 0 never does */
#define NOBODY 255
#define QUEUE 254

#define keyed(r) ((r) < 2)
#define endless(r) ((r) == 0)

mtype = { none, explicit, superseded, disconnect, shutdown };  /* CancelReason */
mtype = { stopped, cancelled };                                /* how a request ended */

/* Cancellation, one for each request. `cancel_lock` is its lock while somebody is between two writes. */
bool cancel_lock[N];
mtype reason[N] = none;
bool flag[N];                    /* CancelFlag: the atomic that the abort callback reads */
bool sealed[N];
mtype ending[N] = none;

/* Registry. `registry_lock` is its lock while accept cancels an older request. */
bool registry_lock;
bool closed;
bool known[N];                   /* Registry._requests: accepted and not ended */
chan waiting = [N] of { byte };  /* WaitingQueue */
byte newest = NOBODY;            /* SessionMap, of the one key */
bool held[N];                    /* Registry._holds */

/* Written by the engine's thread alone, but for `left`: the client has hung up (Client.has_left). */
bool runs[N];                    /* EngineLoop._running */
byte done[N];                    /* tokens computed */
bool in_step[N];                 /* AbortGate::members_ */
bool left[N];

/* Ghosts: of these the code knows nothing. */
byte arrival[N];
byte arrivals;
bool accepted[N];
bool wanted[N];                  /* somebody wants this request cancelled */
byte owner[N] = NOBODY;          /* who may end it */
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

/* At most one request lives under a supersede key, whenever the registry's lock is free for somebody who looks. */
inline unlock_registry() { assert(!(live(0) && live(1))); registry_lock = false }

/* Cancellation.request: the reason before the flag, so that whoever sees the flag finds a reason. */
inline request_cancel(r, why, said)
{
	atomic {
		!cancel_lock[r];
		if
		:: sealed[r] || reason[r] != none -> said = false
		:: else -> reason[r] = why; cancel_lock[r] = true; said = true
		fi
	};
	if
	:: said ->
#ifdef GLOBAL_FLAG
		atomic { flag[0] = true; cancel_lock[r] = false }
#else
		atomic { flag[r] = true; cancel_lock[r] = false }
#endif
	:: else
	fi
}

/* SessionMap.remove */
inline forget_key(r)
{
	if
	:: newest == r -> newest = NOBODY
	:: else
	fi
}

/* Endings.conclude: seal, forget, tell. The caller owns the request. */
inline conclude(r, how)
{
	atomic {
		!registry_lock && !cancel_lock[r];       /* Registry.seal */
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
	};
	atomic {
		!registry_lock;                          /* Registry.forget */
#ifdef SEALED_UNLOCKED
		forget_key(r);
#endif
		known[r] = false;
		unlock_registry()
	};
	d_step {
		n_endings[r]++;                  /* Request.ended.set_result */
		assert(n_endings[r] == 1);
		assert(!in_step[r]);                                /* nothing is computed for it any more */
		assert(ending[r] != cancelled || wanted[r]);        /* no cancel leaks */
		assert(reason[r] == none || ending[r] == cancelled) /* no cancel is lost */
	}
}

/* WaitingQueue.withdraw, under the registry's lock: whoever gets it out owns it. */
inline withdraw(r, said)
{
	if
	:: waiting ?? [eval(r)] -> waiting ?? eval(r); owner[r] = _pid; said = true
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
		:: said -> conclude(r, stopped)  /* Endings.conclude_waiting */
		:: else
		fi
	:: else
	fi
}

/* Engine.submit, in the event loop or, for long prompts, in a thread; then Engine._accept and Registry.accept. */
proctype submit(byte r)
{
	byte older = NOBODY, newer = NOBODY;
	bool said, mine, theirs;

	d_step { arrival[r] = arrivals; arrivals++ };  /* request_context.arrival_of: before all work on it */
	atomic {
		!registry_lock;
		if
		:: closed -> goto refused                /* Registry._check */
		:: else
		fi;
		if                                       /* Registry._session_order */
		:: !keyed(r)
#ifndef NEWEST_BY_ACCEPTANCE
		:: keyed(r) && newest != NOBODY && arrival[newest] > arrival[r] -> older = r; newer = newest
		:: keyed(r) && (newest == NOBODY || arrival[newest] < arrival[r]) ->
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
#ifdef SUPERSEDES_UNLOCKED
		unlock_registry()
#endif
	};
	if
	:: older != NOBODY ->
		assert(arrival[older] < arrival[newer]); /* nobody is superseded by what was asked before it */
		wanted[older] = true;
		request_cancel(older, superseded, theirs)
	:: else
	fi;
	if
	:: held[r] -> request_cancel(r, explicit, said) /* Registry._is_held */
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
	:: theirs -> conclude(older, stopped)            /* Endings.conclude_waiting */
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
		:: !known[r] && !accepted[r] -> held[r] = true   /* Registry._hold */
		:: !known[r] && accepted[r]                      /* request_answers.ended_answer */
		fi
	};
	if
	:: said -> cancel(r, explicit, said)
	:: else
	fi
}

/* A client that leaves. The engine's thread may see it first, by asking the socket (native/hang_up.cpp), or the event
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

/* The engine's thread: EngineLoop.run and turn */
proctype engine()
{
	byte i, n_run, n_members, n_raised, poll;
	bool said, aborted, some;

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
	/* EngineLoop._admit: Registry.take_oldest, then Watcher.look */
	do
	:: atomic { !registry_lock && len(waiting) > 0 && n_run < SLOTS -> waiting ? i; owner[i] = _pid };
		if
		:: requested(i) -> conclude(i, stopped)
		:: else -> d_step { runs[i] = true; n_run++ }
#ifdef CLEARED_FLAG
			flag[i] = false
#endif
		fi
	:: atomic { !registry_lock && (empty(waiting) || n_run == SLOTS) -> i = 0; break }
	od;
	if
	:: n_run == 0 -> goto idle
	:: else
	fi;
	/* Scheduler.plan: all who decode, or a prompt alone; Context::step, AbortGate::arm */
	d_step {
		if
		:: true -> for (i : 0 .. N - 1) { in_step[i] = runs[i] }; n_members = n_run
		:: runs[0] -> in_step[0] = true; n_members = 1
		:: runs[1] -> in_step[1] = true; n_members = 1
		:: runs[2] -> in_step[2] = true; n_members = 1
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
			:: n_raised > 0 -> aborted = true    /* nobody wants the step, or worth_aborting says so */
			:: n_raised < n_members              /* or it does not */
			fi;
			n_raised = 0; poll++
		}
	:: else -> atomic { poll = 0; break }
	od;
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
	:: !registry_lock && len(waiting) > 0 -> goto turn
	:: !registry_lock && empty(waiting) && closed
	fi
}

/* The companies that are tried. */
init {
	atomic {
		run engine();
		run submit(0);
#if defined(KEYED) || defined(ALL)
		run submit(1);
#endif
#if defined(APART) || defined(ALL)
		run submit(2);
		run leave(2);
#endif
		run cancel_by_id(0);
		run close_engine()
	}
}

#define ends(r) (accepted[r] -> <> (n_endings[r] == 1))

/* Every accepted request ends: the endless one too, since somebody cancels it. */
ltl every_accepted_request_ends { [] (ends(0) && ends(1) && ends(2)) }
