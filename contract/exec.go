package contract

// The messages of an exec are binary; the first byte of each is its type.
const (
	ExecStdin  byte = 0 // input of the command; empty: end of input
	ExecStdout byte = 1 // output of the command; with a terminal, all of it
	ExecStderr byte = 2
	ExecEnd    byte = 3 // the last message: an ExecExit, or an error
	ExecResize byte = 4 // an ExecSize: the terminal was resized
	ExecSignal byte = 5 // an ExecKill: send the command a signal
)

// ExecExit is the result of a command.
type ExecExit struct {
	ExitCode *int `json:"exit_code"` // 128 plus the signal if one killed it
}

// ExecSize is the size of a terminal.
type ExecSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// ExecKill is a signal for a command.
type ExecKill struct {
	Signal string `json:"signal"` // INT, TERM, HUP, QUIT, KILL, USR1 or USR2
}
