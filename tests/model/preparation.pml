/*
 * A request in preparation: the event loop that prepares it, the thread that works for it, and threads that cancel it, as
 * Registry.arrive, begin_work, end_work, refuse, accept and withdraw have them. tests/model/test_preparation.py has spin try
 * every interleaving. What comes after the acceptance is in cancel_protocol.pml.
 *
 * A critical section of the registry is one step. The reason of a cancel is written before it, as Cancellation.request does.
 *
 * With one of these names defined, one thing is done as it must not be, and spin must find the fault:
 *
 *   ENDS_DURING_WORK     a cancel ends the request although some work for it is in progress
 *   FORGETS_AFTER_WORK   the end of the work does not look whether the request was cancelled meanwhile
 *   REFUSES_CANCELLED    the request is refused although a cancel has decided its fate
 *   ARRIVES_AGAIN        the request is accepted although it was cancelled, and has ended
 */

#define CANCELLERS 2

/* Registry, guarded by its lock */
bool listed;            /* _requests */
bool preparing;         /* _preparing */
bool working;           /* its `give_up` */
bool waiting;           /* _waiting */

bool requested, sealed; /* Cancellation */
bool given_up;          /* `give_up` was called: the caller of the work is told */
bool may_work, stopped; /* between the event loop and the thread */

/* Ghost variables, which the code does not have. */
bool computing;
bool refused;
bool is_over;           /* the event loop has done with it */
byte n_endings, n_over;

/* Endings.conclude_withdrawn */
inline conclude()
{
	atomic { assert(!sealed); sealed = true };
	assert(!computing);
	atomic { listed = false; n_endings++; assert(n_endings == 1 && !refused) }
}

/* Registry._withdraw, under its lock */
inline withdraw(said)
{
	if
#ifndef ENDS_DURING_WORK
	:: preparing && working -> given_up = true; said = false
	:: preparing && !working -> preparing = false; said = true
#else
	:: preparing -> preparing = false; given_up = true; said = true
#endif
	:: !preparing && waiting -> waiting = false; said = true
	:: else -> said = false
	fi
}

/* Endings.cancel */
proctype canceller()
{
	bool said;

	atomic {
		if
		:: requested || sealed || !listed -> goto done
		:: else -> requested = true
		fi
	};
	atomic { withdraw(said) };
	if
	:: said -> conclude()
	:: else
	fi;
done:
	n_over++
}

/* A thread of http/workers.py */
proctype worker()
{
	bool said;

	do
	:: may_work ->
		atomic { may_work = false; computing = true };
		computing = false;
		atomic {                        /* Registry.end_work */
			working = false;
			said = false;
#ifndef FORGETS_AFTER_WORK
			if
			:: requested -> preparing = false; said = true
			:: else
			fi
#endif
		};
		if
		:: said -> conclude()
		:: else
		fi;
		stopped = true
	:: is_over && !may_work -> break
	od;
	n_over++
}

/* The endpoint, in the event loop: some pieces of work, then an acceptance or an error */
proctype endpoint()
{
	byte n_pieces;

	do
	:: n_pieces < 2 ->
		n_pieces++;
		atomic {                        /* Registry.begin_work */
			if
			:: requested -> goto leave
			:: else -> assert(preparing && !working); working = true
			fi
		};
		atomic { stopped = false; may_work = true };
		if
		:: stopped
		:: given_up -> goto leave       /* RequestCancelled, at once */
		fi
	:: true -> break
	od;
	if
	:: atomic {                             /* Registry.accept */
#ifndef ARRIVES_AGAIN
		if
		:: requested -> goto leave
		:: else
		fi;
#endif
		listed = true;
		preparing = false;
		waiting = true;
		goto done
	   }
	:: true                                 /* it is refused */
	fi;
leave:
	atomic {                                /* Registry.refuse */
		if
#ifndef REFUSES_CANCELLED
		:: preparing && !working && !requested && !sealed ->
#else
		:: preparing && !working && !sealed ->
#endif
			sealed = true;
			preparing = false;
			listed = false;
			refused = true
		:: else
		fi
	};
done:
	is_over = true;
	n_over++
}

/* The engine thread: it takes what waits, and ends it */
proctype engine()
{
	bool said;

	do
	:: atomic { waiting -> waiting = false; said = true }; conclude(); break
	:: atomic { n_over == CANCELLERS + 2 && !waiting -> break }
	od;
	(n_over == CANCELLERS + 2);
	assert(refused == (n_endings == 0));    /* no request is lost, and none is refused and ended */
	assert(!requested || n_endings == 1);   /* no cancel is lost */
	assert(!listed && !preparing && !working)
}

init
{
	byte i;

	atomic {
		listed = true;                  /* Registry.arrive */
		preparing = true;
		run endpoint();
		run worker();
		run engine();
		for (i : 1 .. CANCELLERS) { run canceller() }
	}
}
