package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"mariposa"
	"mariposa/store"
)

// encodeTimeout is how long versions may be read from the store that are not in memory.
const encodeTimeout = 5 * time.Second

// encoded returns the changed instances as an event of a stream, with the position before them:
// a contract.ChangedInstances. The result is shared, so the end of one stream must not spoil it.
func (s *selection) encoded(ctx context.Context, srv *server) []byte {
	s.encode.Do(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), encodeTimeout)
		defer cancel()
		v := srv.viewer(ctx)
		defer srv.published.work()()
		o := jsonText(fmt.Appendf(make([]byte, 0, selectedBytes*(len(s.changed)+1)), "id: %d\nevent: instances\ndata: {", s.from))
		o.text("project", s.changed[0].Record.Project)
		o = append(o, `"instances":[`...)
		for _, c := range s.changed {
			o = v.addChanged(o, c)
		}
		s.text, s.changed = append(o.end(']'), "}\n\n"...), nil
	})
	return s.text
}

// addChanged adds a contract.ChangedInstance: as little as a client needs that knows what the
// instance was before. There may be many, so it is written without the detours of reflection.
func (v *viewer) addChanged(o jsonText, c changedInstance) jsonText {
	r := (*store.Instance)(&c.Record)
	spec, st := r.Spec(), r.Status()
	state, health, why := mariposa.StateOf(spec, st), mariposa.HealthUnknown, spec.Reason
	if c.Deleted {
		state = mariposa.StateDestroyed
	}
	if st != nil {
		health, why = cmp.Or(st.Health, mariposa.HealthUnknown), cmp.Or(mariposa.Reported(st.Reason), why)
	}
	if state != mariposa.StateDestroyed && v.unreachable(spec.Node) {
		state, health, why = mariposa.StateUnknown, mariposa.HealthUnknown, v.unreachableNode(spec.Node)
	}
	o = append(o, '{')
	o.number("revision", c.Revision)
	o.text("id", r.ID)
	o.text("state", string(state))
	o.text("health", string(health))
	if st != nil {
		o.time("started", st.Started)
		o.time("finished", st.Finished)
		if st.ExitCode != nil {
			o = append(strconv.AppendInt(append(o, `"exit_code":`...), int64(*st.ExitCode), 10), ',')
		}
		o.number("restarts", int64(st.Restarts))
	}
	if why != nil {
		text, code := v.sentence(why)
		o.text("reason", text)
		o.text("reason_code", string(code))
	}
	if c.isWhole {
		_, number := v.instanceVersion(spec)
		o.text("name", spec.Name)
		o.text("slot", slotOf(spec))
		o.text("service_name", spec.ServiceName)
		o.number("number", int64(number))
		o.text("compute_type", string(spec.Compute))
		o.text("node", spec.Node)
		o.text("node_name", v.nodeName(spec.Node))
		o.text("goal", string(spec.Goal))
		o.time("created", spec.Created)
		if spec.Managed {
			o = append(o, `"managed":true,`...)
		}
	}
	return append(o.end('}'), ',')
}

// jsonText is a JSON document that is being written. Empty fields are left out.
type jsonText []byte

// end replaces the comma after the last part.
func (o jsonText) end(bracket byte) jsonText {
	o[len(o)-1] = bracket
	return o
}

func (o *jsonText) text(name, value string) {
	if value == "" {
		return
	}
	*o = append(o.name(name), '"')
	for i := range len(value) {
		if c := value[i]; c < ' ' || c > '~' || c == '"' || c == '\\' { // it needs escapes, or may
			text, _ := json.Marshal(value) // never fails
			*o = append(append((*o)[:len(*o)-1], text...), ',')
			return
		}
	}
	*o = append(append(*o, value...), `",`...)
}

func (o *jsonText) number(name string, value int64) {
	if value != 0 {
		*o = append(strconv.AppendInt(o.name(name), value, 10), ',')
	}
}

func (o *jsonText) time(name string, value time.Time) {
	if !value.IsZero() {
		*o = append(value.AppendFormat(append(o.name(name), '"'), time.RFC3339Nano), `",`...)
	}
}

func (o jsonText) name(name string) []byte { return append(append(append(o, '"'), name...), `":`...) }
