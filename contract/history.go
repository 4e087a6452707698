package contract

import "time"

// HistoryWindow is the time that a history covers, in intervals of the same length. Its lists have
// one value for each interval; null: not known.
type HistoryWindow struct {
	From         time.Time `json:"from" doc:"start of the first interval"`
	IntervalSecs int       `json:"interval_secs" doc:"length of an interval; longer if more time is asked for"`
	Since        time.Time `json:"since" doc:"since when this replica remembers; it forgets when it is restarted"`
}

// ProjectHistory is how the services of a project fared during the last hours.
type ProjectHistory struct {
	HistoryWindow
	Project     string           `json:"project"`
	ProjectName string           `json:"project_name"`
	Services    []ServiceHistory `json:"services" doc:"sorted by name"`
}

// ServiceHistory is how a service fared.
type ServiceHistory struct {
	Name     string `json:"name"`
	Goal     []*int `json:"goal" doc:"instances that should run, at the end of each interval"`
	Running  []*int `json:"running" doc:"instances that ran; the lowest number in each interval"`
	Starts   []*int `json:"starts" doc:"instances that began to run"`
	Failures []*int `json:"failures" doc:"instances that failed"`
}

// NodeHistory is how full a node was during the last hours.
type NodeHistory struct {
	HistoryWindow
	Node      string   `json:"node"`
	NodeName  string   `json:"node_name"`
	Instances []*int   `json:"instances" doc:"instances on the node; the highest number in each interval, as for the other lists"`
	MilliCPU  []*int64 `json:"milli_cpu" doc:"reserved thousandths of a CPU"`
	Memory    []*int64 `json:"memory" doc:"reserved bytes of memory"`
}
