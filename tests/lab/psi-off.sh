# A kernel with PSI that was booted with psi=0. Run by init.

section check psi-agent check --cpu-source psi
section once psi-agent once --scope all
