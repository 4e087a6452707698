package mariposa

import "time"

// ForeignContainer is a container on a node that Mariposa neither created nor adopted.
type ForeignContainer struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Image     string    `json:"image"`
	State     string    `json:"state" doc:"in the words of the engine: running, paused, exited, created"`
	Created   time.Time `json:"created"`
	Addresses []string  `json:"addresses,omitempty" doc:"its own addresses"`
	Ports     []int     `json:"ports,omitempty" doc:"the TCP ports of the node that lead to it"`
	Running   bool      `json:"running"`
	Memory    int64     `json:"memory,omitempty" doc:"its limit in bytes, if it is known and has one"`
	MilliCPU  int64     `json:"milli_cpu,omitempty" doc:"its limit in thousandths of a core, if it is known and has one"`
}
