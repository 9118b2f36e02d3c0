/*
 * Steps ahead: the engine's thread, the thread that computes its steps, and threads that have news for the first, as
 * native/step/steps_ahead.cpp, Context::advance and EngineLoop have them. tests/model/test_steps_ahead.py has spin try every
 * interleaving.
 *
 * A wait for a condition variable is one: it sleeps, with the mutex released, until somebody wakes it. What a step
 * computes is left out; any may fail, and after any step Python may find that a sequence has ended.
 *
 * With one of these names defined, one thing is done as it must not be, and spin must find the fault:
 *
 *   HUSHES_LATE      steps ahead are allowed after the engine's thread has looked for news
 *   DEAF             a step begins ahead though it is forbidden
 *   RUNS_ON          a step begins ahead though nobody has come for the last one's result
 *   GIVES_BACK_EARLY a slot is given back beside a step that is ahead
 *   COLLECTS_QUIETLY the engine's thread waits for a result, and does not wake the thread that hands it over
 *   CLOSES_QUIETLY   the context is closed, and the thread that waits for a step is not woken
 */

#define STEPS 4 /* that are computed at most */

/* StepsAhead, guarded by its mutex */
bool mutex;
bool thread_sleeps, user_sleeps; /* at for_thread_ and for_user_ */
bool wanted, waiting, goes_on, closing;
bool handed_over, result_ahead, result_failed;

bool forbidden; /* Context::ahead_forbidden_ */
byte n_steps;
bool joined; /* the thread has ended */

/* Ghost variables, which the code does not have. */
bool computing; /* the context is the thread's */
bool pending;   /* there are news that the engine's thread has not looked at */
bool told;      /* and steps ahead were forbidden for them */
byte n_since;   /* steps that began afterwards */

inline lock() { atomic { !mutex -> mutex = true } }

/* condition_variable::notify_one */
inline wake(sleeps) { sleeps = false }

/* condition_variable::wait, of one turn of its loop: the mutex is held before and afterwards */
inline sleep(sleeps)
{
	atomic { sleeps = true; mutex = false };
	atomic { !sleeps && !mutex -> mutex = true }
}

inline step_begins()
{
	atomic {
		n_steps++;
		computing = true;
		if
		:: told -> n_since++; assert(n_since <= 1) /* one step, which may have been planned before they were forbidden */
		:: else
		fi
	}
}

/* StepsAhead::wait, with the mutex */
inline wait_for_result(may_go_on, ahead)
{
	goes_on = may_go_on;
	waiting = true;
#ifndef COLLECTS_QUIETLY
	wake(thread_sleeps);
#endif
	do
	:: handed_over -> break
	:: else -> sleep(user_sleeps)
	od;
	atomic {
		handed_over = false;
		waiting = false;
		ahead = result_ahead;
		assert(!(result_failed && ahead));
		assert(ahead == computing);
		mutex = false
	}
}

/* EngineLoop.turn */
proctype engine()
{
	bool ahead, steady;

at_rest:
	assert(!computing);
#ifdef HUSHES_LATE
	d_step { pending = false; told = false; n_since = 0 };
	forbidden = false;
#else
	forbidden = false;                                     /* Context.allow_ahead */
	d_step { pending = false; told = false; n_since = 0 }; /* EngineLoop._end_cancelled, _admit and the others */
#endif
	if
	:: n_steps == STEPS -> goto close
	:: n_steps < STEPS
	:: goto close
	fi;
	lock();                                                /* StepsAhead::begin */
	assert(!computing);
	step_begins();
	wanted = true;
	wake(thread_sleeps);
	wait_for_result(true, ahead);
taken:
	if
	:: !ahead -> goto at_rest
	:: ahead                                               /* Generation.take: nothing has ended */
	:: ahead ->                                            /* Generation._come_to_rest */
#ifndef GIVES_BACK_EARLY
		lock();
		wait_for_result(false, ahead);
#endif
		assert(!computing);                            /* Scheduler's slots */
		goto at_rest
	:: ahead -> goto close                                 /* an exception leaves the turn, and the engine is dropped */
	fi;
	if                                                     /* Generation.is_steady, EngineLoop._cancelled */
	:: steady = true
	:: steady = false
	fi;
	lock();                                                /* StepsAhead::collect */
	wait_for_result(steady, ahead);
	goto taken;
close:
	lock();                                                /* ~StepsAhead */
	closing = true;
	mutex = false;
#ifndef CLOSES_QUIETLY
	wake(thread_sleeps);
#endif
	joined
}

/* StepsAhead::work */
proctype thread()
{
	bool follows, failed;

	do
	:: 
		if
		:: follows
		:: !follows ->
			lock();
			do
			:: wanted || closing -> break
			:: else -> sleep(thread_sleeps)
			od;
			if
			:: closing -> mutex = false; break
			:: else -> wanted = false; mutex = false
			fi
		fi;
		if                                             /* Context::compute */
		:: failed = false
		:: failed = true
		fi;
		lock();                                        /* StepsAhead::hand_over */
		do
#ifdef RUNS_ON
		:: !handed_over || closing -> break
#else
		:: waiting && !handed_over || closing -> break
#endif
		:: else -> sleep(thread_sleeps)
		od;
		computing = false;
		follows = false;
		if
		:: closing
		:: else ->
			if                                     /* Context::advance, which may find an end, too */
#ifdef DEAF
			:: !failed && goes_on && n_steps < STEPS -> follows = true
#else
			:: atomic { !failed && goes_on && n_steps < STEPS && !forbidden -> follows = true; assert(waiting); step_begins() }
#endif
			:: true
			fi;
#ifdef DEAF
			if
			:: follows -> step_begins()
			:: else
			fi;
#endif
			d_step { result_ahead = follows; result_failed = failed; handed_over = true }
		fi;
		mutex = false;
		wake(user_sleeps)
	od;
	joined = true
}

/* Registry.accept, Registry.wake and whatever else forbids steps ahead: the news first. */
proctype news()
{
	pending = true;
	atomic { forbidden = true; told = pending }
}

init {
	atomic {
		run engine();
		run thread();
		run news();
		run news()
	};
	timeout;
	assert(joined)
}
