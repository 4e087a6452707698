package contract

import "mariposa"

// ForeignContainers is a list of the containers on nodes that Mariposa neither created nor adopted.
type ForeignContainers struct {
	Containers []ForeignContainer `json:"containers" nullable:"false"`
	Missing    []MissingForeign   `json:"missing" nullable:"false" doc:"nodes whose containers are not all in the list"`
}

// ForeignContainer is a container that Mariposa neither created nor adopted.
type ForeignContainer struct {
	mariposa.ForeignContainer
	Node     string `json:"node"`
	NodeName string `json:"node_name"`
}

// MissingForeign is a node whose foreign containers are not all listed.
type MissingForeign struct {
	Node     string `json:"node"`
	NodeName string `json:"node_name"`
	Reason   string `json:"reason"`
}

// ContainerAdoption is a request to make a foreign container an instance of a project.
type ContainerAdoption struct {
	Project      string `json:"project" maxLength:"255" doc:"id or name of the project"`
	Organization string `json:"organization,omitempty" maxLength:"255" doc:"the organization in which the project name is looked up; default: the caller's personal organization"`
	Name         string `json:"name,omitempty" maxLength:"63" doc:"name of the instance. Default: the name of the container"`
}
