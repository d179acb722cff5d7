NAME="signals"
class Part:
    def __init__(self,w): pass
    def run(self,c,n): pass
