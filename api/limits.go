package api

import (
	"cmp"
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"mariposa"
	"mariposa/auth"
)

// Limits are the limits of one user on a server, for all their tokens together.
// Installation admins are subject only to the limits of the whole server. Zero means
// the default.
type Limits struct {
	RequestRate int // requests per second, after a burst of ten seconds' worth
	Requests    int // requests in progress, without streams
	Streams     int // streams of events and logs, and commands
	Commands    int // commands inside instances
}

// DefaultLimits are the limits of a server without configured limits.
var DefaultLimits = Limits{RequestRate: 100, Requests: 64, Streams: 256, Commands: 16}

const (
	maxStreams  = 4096 // of all users
	maxCommands = 256
	// One in reservedPart of these is reserved for installation admins.
	reservedPart = 8
	burstSeconds = 10
	maxUsage     = 10_000 // users whose rate is remembered
	// maxHeavy is how many heavy requests of one user run at once; the others wait. A few
	// keep all processors busy, and each may take many megabytes.
	maxHeavy = 4
	// maxLists is how many lists of events of one user, also of an installation admin, are in
	// memory until they are sent. The others wait, for listPatience.
	maxLists     = 8
	listPatience = 20 * time.Second
)

func (l Limits) withDefaults() Limits {
	return Limits{
		RequestRate: cmp.Or(l.RequestRate, DefaultLimits.RequestRate), Requests: cmp.Or(l.Requests, DefaultLimits.Requests),
		Streams: cmp.Or(l.Streams, DefaultLimits.Streams), Commands: cmp.Or(l.Commands, DefaultLimits.Commands),
	}
}

// usage counts what users currently use of the server.
type usage struct {
	limits Limits

	mu       sync.Mutex
	rates    map[string]*rate.Limiter // by user
	requests map[string]int           // by user
	heavy    map[string]*turns        // by user; only users with heavy requests in progress
	lists    map[string]*turns        // by user; only users to whom lists of events are sent
	streams  places
	commands places
}

func newUsage(l Limits) *usage {
	l = l.withDefaults()
	return &usage{
		limits: l, rates: map[string]*rate.Limiter{}, requests: map[string]int{}, heavy: map[string]*turns{}, lists: map[string]*turns{},
		streams:  places{all: maxStreams, perUser: l.Streams, taken: map[string]int{}},
		commands: places{all: maxCommands, perUser: l.Commands, perOrganization: maxCommands / 4, taken: map[string]int{}},
	}
}

// payer returns the user whose limits a request counts against: the actual caller, even if
// they act for another user.
func payer(c *auth.Caller) (user string, unlimited bool) {
	return cmp.Or(c.By, c.User), c.By != "" || (c.Admin && c.Bounds.Unbounded())
}

// beginRequest counts a request against its user's limits until it is done.
func (u *usage) beginRequest(c *auth.Caller, now time.Time) (done func(), refused *Error) {
	user, unlimited := payer(c)
	if unlimited {
		return func() {}, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.requests[user] >= u.limits.Requests {
		return nil, throttled(time.Second, "%d requests of %s are in progress, which is the limit: wait until some have completed", u.limits.Requests, c.Name)
	}
	if wait := u.spend(user, now); wait > 0 {
		return nil, throttled(wait, "%s sends more than %d requests per second: slow down; follow events as a stream instead of polling", c.Name, u.limits.RequestRate)
	}
	u.requests[user]++
	return sync.OnceFunc(func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		decrement(u.requests, user)
	}), nil
}

// spend counts one request against a user's rate. If the rate is exceeded, it returns how
// long to wait.
func (u *usage) spend(user string, now time.Time) time.Duration {
	l := u.rates[user]
	if l == nil {
		if len(u.rates) >= maxUsage { // limiters that have recovered are like new ones
			for other, l := range u.rates {
				if l.TokensAt(now) >= float64(l.Burst()) {
					delete(u.rates, other)
				}
			}
		}
		l = rate.NewLimiter(rate.Limit(u.limits.RequestRate), burstSeconds*u.limits.RequestRate)
		u.rates[user] = l
	}
	l.SetLimitAt(now, l.Limit()) // continues from here if the clock was set back
	if l.AllowN(now, 1) {
		return 0
	}
	return time.Duration((1 - l.TokensAt(now)) / float64(u.limits.RequestRate) * float64(time.Second))
}

// turns limits the concurrent requests of one kind and user.
type turns struct {
	free  chan struct{}
	users int // requests that run or wait
}

// beginHeavy waits until the user may run another heavy request: one that takes much
// time or memory.
func (u *usage) beginHeavy(ctx context.Context, c *auth.Caller) (done func(), err error) {
	user, unlimited := payer(c)
	if unlimited {
		return func() {}, nil
	}
	return u.takeTurn(ctx, u.heavy, user, maxHeavy)
}

// beginList waits until another list of events may be read and sent to a user. A client that
// asks for many lists and reads none of them would fill the memory.
func (u *usage) beginList(ctx context.Context, c *auth.Caller) (done func(), err error) {
	user, _ := payer(c)
	waits, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	done, err = u.takeTurn(waits, u.lists, user, maxLists)
	if err != nil && ctx.Err() == nil {
		return nil, throttled(time.Second, "%d lists of events are being sent to %s, which is the limit: read them first", maxLists, c.Name)
	}
	return done, err
}

// takeTurn waits until one of a number of requests of a user has ended.
func (u *usage) takeTurn(ctx context.Context, all map[string]*turns, user string, most int) (done func(), err error) {
	u.mu.Lock()
	t := all[user]
	if t == nil {
		t = &turns{free: make(chan struct{}, most)}
		all[user] = t
	}
	t.users++
	u.mu.Unlock()
	leave := func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(all, user)
		}
	}
	select {
	case t.free <- struct{}{}:
		return sync.OnceFunc(func() { <-t.free; leave() }), nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// takeStream counts a stream against the limits.
func (u *usage) takeStream(c *auth.Caller) (release func(), err error) {
	return u.take(&u.streams, c, "", "streams are open")
}

// takeCommand counts a command inside an instance of an organization against the limits of
// commands and of streams.
func (u *usage) takeCommand(c *auth.Caller, organization string) (release func(), err error) {
	leave, err := u.takeStream(c)
	if err != nil {
		return nil, err
	}
	free, err := u.take(&u.commands, c, organization, "commands are running inside instances")
	if err != nil {
		leave()
		return nil, err
	}
	return func() { free(); leave() }, nil
}

func (u *usage) take(p *places, c *auth.Caller, organization, what string) (release func(), err error) {
	user, unlimited := payer(c)
	u.mu.Lock()
	defer u.mu.Unlock()
	userKey, organizationKey := "user/"+user, "organization/"+organization
	switch {
	case p.total >= p.all, !unlimited && p.total >= p.all-p.all/reservedPart:
		return nil, throttled(time.Second, "%d %s on this server, which is its limit: try again later", p.total, what)
	case !unlimited && p.taken[userKey] >= p.perUser:
		return nil, throttled(time.Second, "%d %s for %s, which is the limit: end some of them", p.perUser, what, c.Name)
	case !unlimited && organization != "" && p.perOrganization > 0 && p.taken[organizationKey] >= p.perOrganization:
		return nil, throttled(time.Second, "%d %s in this organization, which is the limit: end some of them", p.perOrganization, what)
	}
	p.total++
	p.taken[userKey]++
	p.taken[organizationKey]++
	return sync.OnceFunc(func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		p.total--
		decrement(p.taken, userKey)
		decrement(p.taken, organizationKey)
	}), nil
}

// places count something that is limited in total, per user and per organization.
type places struct {
	all, perUser, perOrganization int
	total                         int
	taken                         map[string]int // by user and by organization
}

func decrement(counts map[string]int, key string) {
	if counts[key]--; counts[key] <= 0 {
		delete(counts, key)
	}
}

func throttled(retry time.Duration, format string, args ...any) *Error {
	e := newError(mariposa.Throttled, mariposa.Errorf(mariposa.Throttled, format, args...).Message, nil)
	e.retry = retry
	return e
}
