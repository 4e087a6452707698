package history

import "time"

// maxSteps is how many values of a series are read at most.
const maxSteps = 360

// Window is the time that values are read for: steps of the same length.
type Window struct {
	From  time.Time     // beginning of the first step
	Step  time.Duration // a multiple of Interval
	Steps int
	// Since is when the recorder began, or the earliest time that it still remembers.
	Since time.Time
}

// Window returns the steps of the last so many minutes, up to the present.
func (r *Recorder) Window(last time.Duration) Window {
	last = min(max(last, Interval), Span)
	step := Interval
	for last/step > maxSteps {
		step += Interval
	}
	end := r.Clock.Now().Truncate(step).Add(step)
	steps := int((last + step - 1) / step)
	w := Window{From: end.Add(-time.Duration(steps) * step), Step: step, Steps: steps, Since: r.began}
	r.mu.Lock()
	defer r.mu.Unlock()
	if oldest := time.Unix(int64(r.oldest)*int64(Interval/time.Second), 0).UTC(); oldest.After(w.Since) {
		w.Since = oldest
	}
	return w
}

// Project returns the values of the services of a project by name; nil: not known.
func (r *Recorder) Project(project string, w Window) map[string][]*Service {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string][]*Service{}
	for name, s := range r.services[project] {
		out[name] = s.read(intervalOf(w.From), int(w.Step/Interval), w.Steps, timesService, mergeServices)
	}
	return out
}

// Node returns the values of a node; nil: not known.
func (r *Recorder) Node(node string, w Window) []*Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.nodes[node]
	if s == nil {
		s = &series[Node]{}
	}
	return s.read(intervalOf(w.From), int(w.Step/Interval), w.Steps, func(v Node, _ int) Node { return v }, mergeNodes)
}

// timesService returns what happened in n intervals with the same values.
func timesService(v Service, n int) Service {
	v.Starts, v.Failures = v.Starts*n, v.Failures*n
	return v
}

// mergeServices keeps the worst: a service that was short of instances for a moment was short.
func mergeServices(a, b Service) Service {
	return Service{Goal: b.Goal, Running: min(a.Running, b.Running), Starts: a.Starts + b.Starts, Failures: a.Failures + b.Failures}
}

func mergeNodes(a, b Node) Node {
	return Node{Instances: max(a.Instances, b.Instances), MilliCPU: max(a.MilliCPU, b.MilliCPU), Memory: max(a.Memory, b.Memory)}
}
