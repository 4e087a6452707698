package pace

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"mariposa"
)

// Many nodes that are lost at once look like a failure of the network between them and
// the servers, not like so many failures of machines: their instances probably run, and
// starting all of them again elsewhere would overload what is left. So rescheduling slows
// down when more than half of the permitted share of nodes is lost within a minute, and
// stops when the share is exceeded.
const (
	// StormWindow is the time within which the losses of nodes count as one event.
	StormWindow = time.Minute
	// StormMinimum is the number of nodes with instances below which nothing counts as a storm: of three
	// nodes, two lost ones are as likely two failures.
	StormMinimum = 4
	// stormGap is the time between two nodes whose instances are replaced while
	// rescheduling is slow.
	stormGap = 10 * time.Second
	// stormCalm is the time without a loss after which further losses are not part of a
	// storm.
	stormCalm = 5 * time.Minute
)

// LostNode is a node that cannot be reached, and since when.
type LostNode struct {
	ID    string
	Since time.Time
}

// Nodes are what the judgement of a storm needs to know of the nodes that have instances:
// how many can be reached, and which cannot. Nodes that a user has given up are lost, but
// nobody waits for them, so they are no reason for a storm to begin.
//
// Nodes without instances are left out on both sides. Their loss costs nobody anything, so
// nodes that join and leave at once cannot stop rescheduling. And they are no evidence that
// the network works: otherwise whoever has a join token could add idle nodes until no loss
// of others is a large share any more.
type Nodes struct {
	Reachable int
	Lost      []LostNode
	GivenUp   []LostNode
}

// Weather is which lost nodes are not given up yet.
type Weather struct {
	Storm *mariposa.Storm      // rescheduling is stopped; nil: it is not. It counts the nodes that are lost now
	Held  map[string]bool      // the nodes concerned
	After map[string]time.Time // rescheduling is slow: when the instances of these nodes may be replaced
}

// JudgeWeather decides from the state of all nodes and from the storm that is stored. percent
// is the share of nodes that may be lost within a minute; 0: any. It needs no clock, so all
// servers decide alike.
func JudgeWeather(n Nodes, stored *mariposa.Storm, percent int) Weather {
	if percent <= 0 || percent >= 100 {
		return Weather{}
	}
	sortLost(n.Lost)
	sortLost(n.GivenUp)
	if stored != nil {
		left := lostIn(n.Lost, stored)
		// It ends at half of the share, so that single nodes that come and go do not
		// stop and start everything: the last ones that are lost are probably about to
		// return like the others. And it ends when too few nodes are left for a storm, for
		// example because lost ones were removed. A node that a user has given up is still
		// lost: that says nothing about the others.
		all := len(left) + len(lostIn(n.GivenUp, stored))
		if of := n.Reachable + all; len(left) > 0 && of >= StormMinimum && exceeds(2*all, of, percent) {
			return n.stormOf(*stored, left)
		}
	}
	worst := worstWindow(n.Lost)
	of := n.Reachable + len(worst)
	if !canBeStorm(len(worst), of) || !exceeds(2*len(worst), of, percent) {
		return Weather{}
	}
	since := worst[0].Since
	if exceeds(len(worst), of, percent) {
		storm := mariposa.Storm{Since: since, Began: worst[len(worst)-1].Since}
		return n.stormOf(storm, lostIn(n.Lost, &storm))
	}
	w := Weather{After: map[string]time.Time{}}
	for i, l := range worst {
		w.After[l.ID] = since.Add(StormWindow + time.Duration(i)*stormGap)
	}
	return w
}

// stormOf returns the weather in a storm of which these nodes are still lost.
func (n Nodes) stormOf(storm mariposa.Storm, left []LostNode) Weather {
	storm.Count = len(left) + len(lostIn(n.GivenUp, &storm))
	storm.Of = n.Reachable + storm.Count
	return Weather{Storm: &storm, Held: idsOf(left)}
}

// sortLost sorts nodes by when they were lost.
func sortLost(all []LostNode) {
	slices.SortFunc(all, func(a, b LostNode) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.ID, b.ID))
	})
}

// canBeStorm reports whether there are enough nodes to tell a storm from single failures.
func canBeStorm(lost, of int) bool { return lost >= 2 && of >= StormMinimum }

// exceeds reports whether n of some nodes are more than a share. 33 percent stand for a
// third: two of six nodes are not more than that.
func exceeds(n, of, percent int) bool {
	if percent == 33 {
		return 3*n > of
	}
	return 100*n > percent*of
}

// worstWindow returns the most nodes that were lost within a minute; of equal ones, the
// latest. The nodes are sorted by time.
func worstWindow(lost []LostNode) []LostNode {
	var worst []LostNode
	from := 0
	for to := range lost {
		for lost[to].Since.Sub(lost[from].Since) > StormWindow {
			from++
		}
		if to+1-from >= len(worst) {
			worst = lost[from : to+1]
		}
	}
	return worst
}

// lostIn returns the nodes that were lost in a storm: from its beginning until no more were
// lost for some minutes. A later loss has another cause.
func lostIn(lost []LostNode, storm *mariposa.Storm) []LostNode {
	var out []LostNode
	last := storm.Since
	if storm.Began.After(last) {
		last = storm.Began
	}
	for _, l := range lost {
		if l.Since.Before(storm.Since) || l.Since.Sub(last) > stormCalm {
			continue
		}
		out = append(out, l)
		if l.Since.After(last) {
			last = l.Since
		}
	}
	return out
}

func idsOf(lost []LostNode) map[string]bool {
	ids := make(map[string]bool, len(lost))
	for _, l := range lost {
		ids[l.ID] = true
	}
	return ids
}
