package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"mariposa"
)

// maxScale bounds a service, so that a slip of a finger is caught.
const maxScale = 1_000_000

// scaling is what is asked of one service's scale: a number, or a difference.
type scaling struct {
	n  int
	by bool
}

func (c scaling) String() string {
	if c.by {
		return fmt.Sprintf("by %+d", c.n)
	}
	return fmt.Sprintf("to %d", c.n)
}

// scale changes the scales of services in one task.
func (e *edit) scale(scales map[string]scaling) (*mariposa.TaskSpec, error) {
	if err := e.something(); err != nil {
		return nil, err
	}
	goals := e.goals()
	t := &mariposa.TaskSpec{Task: mariposa.TaskScale, Component: "project", Version: e.spec.Version, Lifts: e.lifts(), Before: map[string]int{}}
	same, said := true, []string(nil)
	for _, ref := range slices.Sorted(maps.Keys(scales)) {
		name, err := e.findService(goals, ref)
		if err != nil {
			return nil, err
		}
		if slices.Contains(t.Services, name) {
			return nil, invalid("scale: %s is named twice", name)
		}
		ask, now := scales[ref], goals[name].Scale
		will := ask.n
		if ask.by {
			will += now
		}
		if will < 0 || will > maxScale {
			return nil, invalid("scale: %s would be scaled from %d to %d; it must stay between 0 and %d", name, now, will, maxScale)
		}
		t.Before[name] = now
		ask.into(&t.Patch, name)
		t.Services, said, same = append(t.Services, name), append(said, name+" "+ask.String()), same && will == now
	}
	if same && e.idle(t.Services) && !e.any(t.Services, func(ss *mariposa.ServiceStatus) bool { return ss.Frozen != nil }) {
		return nil, nil
	}
	t.Reason = mariposa.Asked(actor(e.ctx) + " scaled " + strings.Join(said, ", "))
	return t, nil
}

func (c scaling) into(p *mariposa.Patch, service string) {
	at := &p.Scale
	if c.by {
		at = &p.ScaleBy
	}
	if *at == nil {
		*at = map[string]int{}
	}
	(*at)[service] = c.n
}

// readScales reads the scale of the service in the path, or an object of scales
// by service.
func readScales(raw json.RawMessage, service string) (map[string]scaling, error) {
	if service != "" {
		one, err := readScale(raw)
		return map[string]scaling{service: one}, err
	}
	var all map[string]json.RawMessage
	if json.Unmarshal(raw, &all) != nil || len(all) == 0 {
		return nil, invalid(`scale must be an object by service, like {"web": 5, "db": "+1"}`)
	}
	scales := map[string]scaling{}
	for name, raw := range all {
		one, err := readScale(raw)
		if err != nil {
			return nil, err
		}
		scales[name] = one
	}
	return scales, nil
}

// readScale reads 5, "5", "+1" or "-2".
func readScale(raw json.RawMessage) (scaling, error) {
	text := string(raw)
	var quoted string
	signed := false
	if json.Unmarshal(raw, &quoted) == nil && text != "null" {
		text = quoted
		signed = strings.HasPrefix(text, "+") || strings.HasPrefix(text, "-")
	}
	n, err := strconv.Atoi(text)
	if err != nil || (n < 0 && !signed) || n < -maxScale || n > maxScale {
		return scaling{}, invalid(`scale must be a number from 0 to %d like 5, or a change like "+1" or "-2", not %s`, maxScale, shorten(string(raw)))
	}
	return scaling{n: n, by: signed}, nil
}
