package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"mariposa"
	"mariposa/wire"
)

// What a node reports is stored, stays in the feed for days, and is sent to everybody who
// lists nodes or follows events. A node with a valid key may still be hostile or faulty, so
// everything that it reports has a bound, here. Honest nodes stay far below. What is too
// large is cut when it arrives; the log and the reason of the node say so. What makes no
// sense is refused.
const (
	// Texts, in bytes. An error of a driver that quotes a command fits into a reason.
	maxReason = 2 << 10
	maxDetail = 1 << 10 // one detail, or a path
	maxWord   = 256     // a name, an id or an address

	// Lists. Instances have a few addresses and details, which are in each of their events,
	// and there are four compute types.
	maxAddresses   = 16
	maxChecks      = 21 // the checks of a manifest and that of ContainerPilot
	maxAddress     = 128
	maxDetails     = 32
	maxDetailBytes = 4 << 10 // of all details together
	maxTypes       = 16
	maxUpdates     = 32

	// maxKey bounds the secret of a node, which is hashed, not stored.
	maxKey = 1 << 10
	// maxCapacity bounds each number of a capacity: a pebibyte of memory. The sum over all
	// nodes must not overflow.
	maxCapacity = 1 << 50

	// maxQuarantined is how many quarantined instances of a node are known, and
	// maxQuarantineBytes how large they are together. They are kept in memory, by the
	// session: `node adopt` and `node purge` act on all of them.
	maxQuarantined     = 10_000
	maxQuarantineBytes = 16 << 20
	// maxOrigin bounds what is known of where one of them came from. Without it, it cannot
	// be adopted.
	maxOrigin = 8 << 10
	// maxSample is how many of them are stored, and maxSampleBytes how large those are.
	maxSample      = 100
	maxSampleBytes = 128 << 10
)

// maxWaiting is how many bytes of reports may wait while the session stores earlier ones:
// eight of the largest frames, or more than 100,000 changes of instances.
const maxWaiting = 8*wire.MaxReport + 1

// maxUnfinished is how many bytes of frames that have not arrived completely a server keeps,
// of all agents together, and unfinishedTime is how long a frame may take to arrive: those of
// honest agents have about 1 MiB.
const (
	maxUnfinished  = 256 << 20
	unfinishedTime = 30 * time.Second
)

// How often a node can open a session, and have its status written. An agent that restarts,
// or tries one server after another, needs a few sessions at once; a node that keeps doing
// so must not fill the database.
const (
	openBurst      = 20
	openInterval   = 5 * time.Second
	statusBurst    = 10
	statusInterval = 5 * time.Second
)

// cutter cuts what a node reports to its bounds, and collects what was too large.
type cutter struct{ excess []string }

func (c *cutter) note(what string) {
	if !slices.Contains(c.excess, what) {
		c.excess = append(c.excess, what)
	}
}

// text cuts a text, and makes it safe to show.
func (c *cutter) text(text string, limit int, what string) string {
	if len(text) > limit {
		c.note(what)
	}
	return clean(shorten(text, limit))
}

// clean removes what terminals and browsers do not show but obey, such as control
// characters and those that reverse the direction of text. A line break becomes a space.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r) || r == unicode.ReplacementChar:
			return -1
		}
		return r
	}, text)
}

// count returns a number of restarts and the like, or 0 if it makes no sense.
func (c *cutter) count(n int, what string) int {
	if n < 0 || n > math.MaxInt32 {
		c.note(what)
		return 0
	}
	return n
}

// time returns a time, or another one if it makes no sense.
func (c *cutter) time(t, instead time.Time, what string) time.Time {
	if t.IsZero() || mariposa.IsPlausibleTime(t) {
		return t
	}
	c.note(what)
	return instead
}

// shorten cuts a text to a number of bytes, between two characters.
func shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	text = text[:limit-len("…")]
	for len(text) > 0 {
		r, size := utf8.DecodeLastRuneInString(text)
		if r != utf8.RuneError || size != 1 {
			break
		}
		text = text[:len(text)-1]
	}
	return text + "…"
}

// list cuts a list of texts.
func (c *cutter) list(all []string, most, limit int, what string) []string {
	if len(all) > most {
		c.note(what)
		all = all[:most]
	}
	out := slices.Clone(all)
	for i := range out {
		out[i] = c.text(out[i], limit, what)
	}
	return out
}

// details cuts details by name. Of too many, the first by name are kept.
func (c *cutter) details(all map[string]string, what string) map[string]string {
	if all == nil {
		return nil
	}
	out, bytes := map[string]string{}, 0
	for _, name := range c.names(slices.Sorted(maps.Keys(all)), maxDetails, what) {
		text := c.text(all[name], maxDetail, what)
		if bytes += len(name) + len(text); bytes > maxDetailBytes {
			c.note(what)
			break
		}
		out[name] = text
	}
	return out
}

// names drops names that are too long, and those that are too many: half of a name means
// something else.
func (c *cutter) names(all []string, most int, what string) []string {
	kept := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !isShortText(name) })
	if len(kept) > most {
		kept = kept[:most]
	}
	if len(kept) < len(all) {
		c.note(what)
	}
	return kept
}

// types drops invalid compute types and limits their number, as names does for names.
func (c *cutter) types(all []mariposa.ComputeType, what string) []mariposa.ComputeType {
	kept := slices.DeleteFunc(slices.Clone(all), func(t mariposa.ComputeType) bool { return !isShortText(string(t)) })
	if len(kept) > maxTypes {
		kept = kept[:maxTypes]
	}
	if len(kept) < len(all) {
		c.note(what)
	}
	return kept
}

// hello returns what is kept of a hello while its session lasts.
func (c *cutter) hello(h *wire.Hello) *wire.Hello {
	out := *h
	out.Key, out.FormerKey, out.Seen = "", "", nil // they were checked
	for _, text := range []*string{&out.Release, &out.Home} {
		if !isShortText(*text) {
			*text = ""
		}
	}
	out.Machine = h.Machine.Bounded()
	out.Drivers = c.types(h.Drivers, "its drivers")
	out.Capabilities, out.Offers = nil, nil
	for _, t := range c.types(slices.Sorted(maps.Keys(h.Capabilities)), "the capabilities of its drivers") {
		can := h.Capabilities[t]
		can.Updates = c.list(can.Updates, maxUpdates, maxWord, "the capabilities of its drivers")
		if out.Capabilities == nil {
			out.Capabilities = map[mariposa.ComputeType]mariposa.Capabilities{}
		}
		out.Capabilities[t] = can
	}
	for _, t := range c.types(slices.Sorted(maps.Keys(h.Offers)), "what its drivers offer") {
		offer := h.Offers[t]
		offer.Unavailable = c.text(offer.Unavailable, maxReason, "what its drivers offer")
		offer.Details = c.details(offer.Details, "what its drivers offer")
		if out.Offers == nil {
			out.Offers = map[mariposa.ComputeType]mariposa.Offer{}
		}
		out.Offers[t] = offer
	}
	return &out
}

// status cuts the status of an instance. Secrets are masked before: half of one would not
// be recognized.
func (c *cutter) status(st *mariposa.InstanceStatus, now time.Time) {
	const figures = "the times and numbers of an instance"
	st.Started, st.Finished = c.time(st.Started, now, figures), c.time(st.Finished, now, figures)
	st.Restarts, st.ManualRestarts = c.count(st.Restarts, figures), c.count(st.ManualRestarts, figures)
	if code := st.ExitCode; code != nil && int64(*code) != int64(int32(*code)) {
		c.note(figures)
		st.ExitCode = nil
	}
	st.Reason = c.text(st.Reason, maxReason, "the reason of an instance")
	st.PhysicalID = c.text(st.PhysicalID, maxWord, "the physical id of an instance")
	st.Addresses = c.list(st.Addresses, maxAddresses, maxAddress, "the addresses of an instance")
	st.Details = c.details(st.Details, "the details of an instance")
	switch st.Health {
	case "", mariposa.HealthUnknown, mariposa.HealthStarting, mariposa.HealthHealthy, mariposa.HealthUnhealthy:
	default:
		c.note("the health of an instance")
		st.Health = mariposa.HealthUnknown
	}
	st.ChecksDigest = c.text(st.ChecksDigest, maxWord, "the health checks of an instance")
	if len(st.Checks) > maxChecks {
		c.note("the health checks of an instance")
		st.Checks = st.Checks[:maxChecks]
	}
	for i := range st.Checks {
		check := &st.Checks[i]
		check.Name = c.text(check.Name, maxReason, "the health checks of an instance")
		check.Reason = c.text(check.Reason, maxReason, "the health checks of an instance")
		check.Since = c.time(check.Since, now, figures)
		if check.Health != mariposa.HealthHealthy && check.Health != mariposa.HealthUnhealthy {
			check.Health = mariposa.HealthStarting
		}
	}
	c.members(st)
}

// members cuts the members of a balancer. What changes with every connection is not stored.
func (c *cutter) members(st *mariposa.InstanceStatus) {
	const what = "the members of a load balancer"
	if len(st.Members) > mariposa.MaxMembers {
		c.note(what)
		st.Members = st.Members[:mariposa.MaxMembers]
	}
	for i := range st.Members {
		m := &st.Members[i]
		m.Connections, m.Responses = 0, nil
		m.Backend, m.Instance, m.Name = c.text(m.Backend, maxWord, what), c.text(m.Instance, maxWord, what), c.text(m.Name, maxWord, what)
		m.Address, m.Reason, m.Weight = c.text(m.Address, maxAddress, what), c.text(m.Reason, maxWord, what), c.count(m.Weight, what)
		if m.State != mariposa.MemberUp && m.State != mariposa.MemberDrain {
			m.State = mariposa.MemberDown
		}
	}
}

// provided cuts the state of a resource.
func (c *cutter) provided(p *wire.Provided) {
	p.Reason = c.text(p.Reason, maxReason, "the reason of a resource")
	p.Path = c.text(p.Path, maxDetail, "the path of a resource")
}

// inventory is the quarantined instances of a node, cut. They arrive in several frames.
type inventory struct {
	cutter
	kept   []mariposa.Quarantined
	total  int
	bytes  int
	isFull bool // no more are kept
}

// add adds a part of the inventory.
func (v *inventory) add(part []mariposa.Quarantined) {
	v.total += len(part)
	for _, q := range part {
		if v.isFull {
			return
		}
		size, ok := v.quarantined(&q)
		if v.bytes += size; len(v.kept) == maxQuarantined || v.bytes > maxQuarantineBytes {
			v.isFull = true
		} else if ok {
			v.kept = append(v.kept, q)
		}
	}
}

// finish notes whether it was cut.
func (v *inventory) finish() {
	if len(v.kept) < v.total {
		v.note(fmt.Sprintf("its quarantine of %d instances", v.total))
	}
}

// quarantined cuts a quarantined instance, and returns its size; false if it has no id.
func (c *cutter) quarantined(q *mariposa.Quarantined) (size int, ok bool) {
	const what = "what it says about quarantined instances"
	for _, name := range []string{q.ID, string(q.Compute), string(q.State)} {
		if !isShortText("-" + name) {
			return 0, false
		}
	}
	q.Since = c.time(q.Since, time.Time{}, what)
	q.Name, q.Project = c.text(q.Name, maxWord, what), c.text(q.Project, maxWord, what)
	q.PhysicalID, q.Reason = c.text(q.PhysicalID, maxWord, what), c.text(q.Reason, maxWord, what)
	if b, err := json.Marshal(q.Origin); err != nil || len(b) > maxOrigin || !isSafeOrigin(q.Origin) {
		c.note(what)
		q.Origin = nil
	}
	return quarantinedSize(q), q.ID != ""
}

// isSafeOrigin reports whether what is shown of where an instance came from can be shown.
func isSafeOrigin(o *mariposa.Provenance) bool {
	if o == nil {
		return true
	}
	for _, text := range []string{o.Project, o.Service, o.ServiceName, o.Digest, o.Live, o.Bound, o.Proof} {
		if clean(text) != text {
			return false
		}
	}
	return o.Slot >= 0 && o.Number >= 0 && (o.Created.IsZero() || mariposa.IsPlausibleTime(o.Created))
}

// quarantinedSize returns how many bytes a quarantined instance has as JSON.
func quarantinedSize(q *mariposa.Quarantined) int {
	b, _ := json.Marshal(q) // never fails
	return len(b)
}

// sampleOf returns those of the quarantined instances that are stored.
func sampleOf(all []mariposa.Quarantined) []mariposa.Quarantined {
	bytes := 0
	for i := range all {
		if bytes += quarantinedSize(&all[i]); i == maxSample || bytes > maxSampleBytes {
			return all[:i]
		}
	}
	return all
}

// checkCapacity refuses numbers that no machine has.
func checkCapacity(r mariposa.Resources) *wire.Bye {
	for _, n := range []int64{int64(r.Instances), r.MilliCPU, r.Memory} {
		if n < 0 || n > maxCapacity {
			return finalError("the capacity of a node must be from 0 (no limit) to %d in instances, milli_cpu and memory, not %d", int64(maxCapacity), n)
		}
	}
	return nil
}

// reportCut is the reason of a node that reports too much; nil if it does not.
func reportCut(parts ...[]string) *mariposa.Reason {
	all := slices.Concat(parts...)
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, cmp.Compare)
	return &mariposa.Reason{Code: mariposa.ReasonReportCut, Keys: slices.Compact(all)}
}
