package lxc

import (
	"errors"
	"os"
	"strconv"
	"strings"
)

// The ids of containers are above those of users and of the subordinate ids that distributions
// give out, and below those of process instances.
const (
	firstIDs  = 0x2000_0000
	endIDs    = 0x7000_0000
	idCount   = 0x1_0000
	idRanges  = (endIDs - firstIDs) / idCount
	subUIDs   = "/etc/subuid"
	subGIDs   = "/etc/subgid"
	errNoIDs  = "this node has no ids left for another system container: remove some"
	maxFileID = idCount - 1
)

// assignIDs returns the ids of an instance: those that it has, or a range that no other instance
// has. Nodes on one machine begin to look at different places. The caller holds the mutex.
func (d *Driver) assignIDs(e *entry, is support) (int, error) {
	if !is.userNS {
		if e.held.ids != 0 {
			return 0, errors.New("it was created with ids of its own, which this machine cannot give it any more: " + is.noUserNS)
		}
		return 0, nil
	}
	if e.held.ids != 0 {
		return e.held.ids, nil
	}
	used := map[int]bool{}
	d.roster.Each(func(other *entry) { used[other.held.ids] = true })
	reserved := append(readRanges(subUIDs), readRanges(subGIDs)...)
	at := int(hashOf(d.options.Scope) % idRanges)
	for n := range idRanges {
		first := firstIDs + (at+n)%idRanges*idCount
		if !used[first] && !overlaps(reserved, first) {
			e.held.ids = first
			return first, nil
		}
	}
	return 0, errors.New(errNoIDs)
}

// idRange is a range of ids that belongs to someone else.
type idRange struct{ first, count int }

// readRanges reads the ranges that users of the machine may use: lines of NAME:FIRST:COUNT.
func readRanges(path string) (all []idRange) {
	b, _ := os.ReadFile(path) // there may be none
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 3 {
			continue
		}
		first, err1 := strconv.Atoi(f[1])
		count, err2 := strconv.Atoi(f[2])
		if err1 == nil && err2 == nil {
			all = append(all, idRange{first, count})
		}
	}
	return all
}

func overlaps(all []idRange, first int) bool {
	for _, r := range all {
		if first < r.first+r.count && r.first < first+idCount {
			return true
		}
	}
	return false
}
